/* Messages with control messages that are ill-formed, unknown, or what the kind of socket does not
 * know. Prints the answers, and what comes, which must be the kernel's, then waits for the end of its
 * standard input. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "both.h"

static int family;
static char room[70000];

static void connect_ends(void)
{
    connect_both_of(family);
    close(listener);
    exchange(5000);
}

/* Tells what has come with the message, and a mark behind it. */
static void tell(long answer, int error)
{
    char bytes[64];
    struct iovec part = {bytes, sizeof bytes};
    struct { struct cmsghdr header; char more[256]; } control;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    int came = 0, controls = 0;
    printf("%ld %d", answer, answer < 0 ? error : 0);
    if (write(ends[0], "#", 1) != 1)
        abort();
    do {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        int got = recvmsg(ends[1], &message, 0);
        if (got <= 0)
            abort();
        came += got;
        for (struct cmsghdr *one = CMSG_FIRSTHDR(&message); one; one = CMSG_NXTHDR(&message, one)) {
            controls++;
            int count = (one->cmsg_len - CMSG_LEN(0)) / 4, fd;
            if (one->cmsg_type != SCM_RIGHTS)
                continue;
            for (int n = 0; n < count; n++) {
                memcpy(&fd, CMSG_DATA(one) + 4 * n, 4);
                close(fd);
            }
        }
        part.iov_base = bytes;
        memmove(bytes, bytes + got - 1, 1);
    } while (bytes[0] != '#');
    printf(", %d bytes and %d messages\n", came - 1, controls);
}

/* By number: musl's function copies the list. */
static void send_list(const void *list, size_t length)
{
    struct iovec part = {"news", 4};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = (void *)list,
                             .msg_controllen = length};
    errno = 0;
    long answer = syscall(SYS_sendmsg, ends[0], &message, MSG_NOSIGNAL);
    tell(answer, errno);
#ifdef __GLIBC__
    errno = 0;
    answer = sendmsg(ends[0], &message, MSG_NOSIGNAL);
    tell(answer, errno);
    struct mmsghdr two[2] = {{{.msg_iov = &part, .msg_iovlen = 1}}, {message}};
    errno = 0;
    answer = sendmmsg(ends[0], two, 2, MSG_NOSIGNAL);
    tell(answer, errno);
#endif
}

struct one {
    size_t length;
    int level, type;
};

static size_t put(size_t at, struct one one, int data)
{
    memcpy(room + at, &one, sizeof one);
    for (int n = 0; n < 12; n++)
        memcpy(room + at + sizeof one + 4 * n, &data, 4);
    size_t step = (one.length + 7) & ~(size_t)7;
    return at + (step > 1000 ? 16 : step);
}

static const size_t LENGTHS[] = {0, 1, 15, 16, 17, 19, 20, 24, 28, 31, 32, 48, 63, 64, 65, 1000, 1 << 20,
                                 1ul << 31, 1ul << 32, (1ul << 32) + 20, 1ul << 63, -1ul, -7ul, -16ul};
#define LENGTHS_COUNT (sizeof LENGTHS / sizeof *LENGTHS)

static const size_t LIST_LENGTHS[] = {1, 15, 16, 20, 24, 40, 64, 1000};

/* Lists that have no effect, or are refused: the connection stays where it is. */
static void send_ineffective(void)
{
    static const int LEVELS[] = {IPPROTO_TCP, IPPROTO_IP, 0x7fffffff, -1, 282 /* SOL_TLS */};
    for (int n = 0; n < LENGTHS_COUNT; n++)
        for (int m = 0; m < sizeof LIST_LENGTHS / sizeof *LIST_LENGTHS; m++)
            for (int level = 0; level < 5; level++) {
                if (level && n % 4 != m % 4)
                    continue;
                memset(room, 0, 2000);
                put(0, (struct one){LENGTHS[n], LEVELS[level], 1}, 0);
                printf("%zu of %zu, level %d: ", LENGTHS[n], LIST_LENGTHS[m], LEVELS[level]);
                send_list(room, LIST_LENGTHS[m]);
                if (m < 6) {
                    /* As the second one, and at an odd address. */
                    memset(room, 0, 2000);
                    size_t at = put(1, (struct one){20, LEVELS[level], 1}, 0);
                    put(at, (struct one){LENGTHS[n], SOL_SOCKET, SCM_RIGHTS}, 1 << 20);
                    if (LENGTHS[n] < 16 || LENGTHS[n] > LIST_LENGTHS[m]) {
                        printf("second: ");
                        send_list(room + 1, at - 1 + LIST_LENGTHS[m]);
                    }
                }
            }
    /* Descriptors in a list that is ill-formed stay where they are. */
    memset(room, 0, 2000);
    put(put(0, (struct one){20, SOL_SOCKET, SCM_RIGHTS}, ends[0]), (struct one){8, SOL_SOCKET, 1}, 0);
    printf("a descriptor and no end: ");
    send_list(room, 64);
    printf("without a list: ");
    send_list(0, 0);
    send_list(room, 0);
    send_list((void *)8, 0);
    send_list(0, 64);
}

/* Each on a connection of its own: it may go to the kernel. */
static void send_effective(void)
{
    static const int TYPES[] = {SCM_RIGHTS, SCM_CREDENTIALS, 3 /* SCM_SECURITY */, 4 /* SCM_PIDFD */, 29,
                                36 /* SO_MARK */, 37 /* SO_TIMESTAMPING */, 61 /* SCM_TXTIME */, 12,
                                0, -1, 1000};
    static const size_t SIZES[] = {16, 20, 24, 28, 33};
    for (int type = 0; type < 12; type++) {
        connect_ends();
        for (int n = 0; n < 5; n++)
            for (int data = 0; data < 3; data++) {
                memset(room, 0, 2000);
                put(0, (struct one){SIZES[n], SOL_SOCKET, TYPES[type]}, ((int[]){0, -1, 1 << 30})[data]);
                printf("type %d, %zu, data %d: ", TYPES[type], SIZES[n], data);
                send_list(room, 40);
            }
        close(ends[0]);
        close(ends[1]);
    }
    for (int n = 0; n < 5; n++) {
        static const size_t LONG[] = {1000, 16384, 20000, 66000, -1ul};
        connect_ends();
        memset(room, 0, sizeof room);
        put(0, (struct one){LONG[n], IPPROTO_TCP, 1}, 0);
        if (n == 1)
            for (size_t at = 0; at < sizeof room - 100; at += 24)
                put(at, (struct one){20, IPPROTO_TCP, 1}, 0);
        printf("a long list, %zu: ", LONG[n]);
        send_list(room, LONG[n]);
        send_list(room, 1ul << 31);
        send_list(room, (1ul << 31) - 1);
        close(ends[0]);
        close(ends[1]);
    }
    /* Behind a direction that has ended. */
    connect_ends();
    memset(room, 0, 2000);
    shutdown(ends[0], SHUT_WR);
    struct iovec part = {"news", 4};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room};
    for (int n = 0; n < 2; n++) {
        message.msg_controllen = n ? 64 : 0;
        long answer = sendmsg(ends[0], &message, MSG_NOSIGNAL);
        printf("behind the end, %d: %ld %d\n", n, answer, errno);
    }
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    char byte;
    setvbuf(stdout, 0, _IOFBF, 1 << 16);
    printf("each list\n");
    const int families[] = {AF_INET, AF_UNIX};
    for (int n = 0; n < 2; n++) {
        family = families[n];
        printf("Family %d\n", family);
        connect_ends();
        send_ineffective();
        close(ends[0]);
        close(ends[1]);
        send_effective();
    }
    printf("all is well\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
