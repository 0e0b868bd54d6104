/* Each call that the library answers gets flags, lengths and counts that are unknown, odd or huge,
 * through each door. Prints the answers, which must be the kernel's, then waits for the end of its
 * standard input. */
#define _GNU_SOURCE
#include <limits.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/un.h>

#include "both.h"
#include "doors.h"

static int family, epoll, file, pipes[2];
static char bytes[64] = "sixteen bytes and some more, as many as there is room for.....", *many;

static void connect_ends(void)
{
    connect_both_of(family);
    exchange(2000);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    fcntl(listener, F_SETFL, O_NONBLOCK);
    epoll = epoll_create1(0);
}

/* Empties both ends and leaves a few bytes in each; how many there were. A mark tells that all of
 * them have arrived. */
static void settle(int *found)
{
    static char all[1 << 20];
    for (int n = 0; n < 2; n++) {
        struct pollfd one = {ends[n], POLLIN};
        ssize_t got, count = 0;
        fcntl(ends[n], F_SETFL, O_NONBLOCK);
        if (write(ends[!n], "#", 1) != 1) {
            found[n] = -errno;
            continue;
        }
        while (!count || all[count - 1] != '#') {
            poll(&one, 1, 1000);
            got = read(ends[n], all + count, sizeof all - count);
            if (got == 0 || got < 0 && errno != EAGAIN)
                break;
            count += got > 0 ? got : 0;
        }
        found[n] = count - 1;
    }
    for (int n = 0; n < 2; n++)
        if (write(ends[n], "a few bytes of news", 19) < 0)
            printf("(%d) ", errno);
    while (read(pipes[0], all, sizeof all) > 0)
        ;
    if (write(pipes[1], "ten bytes.", 10) != 10)
        abort();
}

static void try(const char *what, long odd, long number, const long *good)
{
    for (int door = 0; door < 3; door++) {
        long a[6], answer;
        int found[2], error, later = 0;
        socklen_t four = 4;
        memcpy(a, good, sizeof a);
        if (!enter(door, number, a, &answer))
            continue;
        error = errno;
        getsockopt(ends[0], SOL_SOCKET, SO_ERROR, &later, &four);
        settle(found);
        printf("%s %#lx %s: %ld %d, left %d %d\n", what, odd, DOORS[door], answer,
               answer < 0 ? error : later, found[0], found[1]);
    }
}

#define TRY(odd, name, ...) try(#name, odd, SYS_##name, (const long[6]){__VA_ARGS__})

static const long NUMBERS[] = {0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 18, 64, 100, 1024, 1025, INT_MAX, 1l << 31,
                               UINT_MAX, 1l << 32, (1l << 32) + 1, (1l << 32) + 4, 1l << 40, LONG_MAX,
                               LONG_MIN, -1, -2, -16};
#define NUMBERS_COUNT (sizeof NUMBERS / sizeof *NUMBERS)
#define EACH(number) \
    for (int each = 0; each < NUMBERS_COUNT; each++) \
        for (long number = NUMBERS[each], once = 1; once; once = 0)

/* Each flag on a connection of its own: some take theirs back to the kernel. */
static void flag(int bit)
{
    int fd = ends[0];
    long flag = 1l << bit;
    struct iovec parts[2] = {{bytes, 8}, {bytes + 8, 8}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    struct mmsghdr messages[2] = {{message}, {message}};
    TRY(flag, recvfrom, fd, (long)bytes, 16, flag, 0, 0);
    TRY(flag, recvmsg, fd, (long)&message, flag);
    TRY(flag, recvmmsg, fd, (long)messages, 2, flag, 0);
    TRY(flag, sendto, fd, (long)bytes, 16, flag, 0, 0);
    TRY(flag, sendto, fd, (long)bytes, 0, flag, 0, 0);
    message.msg_flags = 0;
    TRY(flag, sendmsg, fd, (long)&message, flag);
    TRY(flag, sendmmsg, fd, (long)messages, 2, flag);
    message.msg_flags = flag;
    TRY(flag, sendmsg, fd, (long)&message, 0);
    TRY(flag, recvmsg, fd, (long)&message, 0);
    TRY(flag, preadv2, fd, (long)parts, 2, -1, 0, flag);
    TRY(flag, pwritev2, fd, (long)parts, 2, -1, 0, flag);
    TRY(flag, splice, pipes[0], 0, fd, 0, 10, flag | SPLICE_F_NONBLOCK);
    TRY(flag, splice, fd, 0, pipes[1], 0, 10, flag | SPLICE_F_NONBLOCK);
    if (bit < 16) {
        struct pollfd one = {fd, flag};
        TRY(flag, poll, (long)&one, 1, 0);
        printf("%#x\n", one.revents);
    }
    struct epoll_event event = {.events = flag}, came = {0};
    TRY(flag, epoll_ctl, epoll, EPOLL_CTL_ADD, fd, (long)&event);
    TRY(flag, epoll_wait, epoll, (long)&came, 1, 0);
    printf("%#x\n", came.events);
    event.events = EPOLLIN | flag;
    TRY(flag, epoll_ctl, epoll, EPOLL_CTL_MOD, fd, (long)&event);
    TRY(flag, epoll_wait, epoll, (long)&came, 1, 0);
    TRY(flag, epoll_ctl, epoll, EPOLL_CTL_DEL, fd, 0);
    TRY(flag, accept4, listener, 0, 0, flag);
    TRY(flag, epoll_create1, flag & ~EPOLL_CLOEXEC ? flag : -1);
    TRY(flag, dup3, fd, fd, flag);
    if (flag != O_CLOEXEC)
        TRY(flag, dup3, fd, 100, flag);
}

static void lengths(void)
{
    int fd = ends[0];
    long at = (long)bytes;
    EACH(n) {
        TRY(n, read, fd, at, n);
        TRY(n, recvfrom, fd, at, n, 0, 0, 0);
        TRY(n, recvfrom, fd, at, n, MSG_PEEK, 0, 0);
        if (n >= 0 && n <= 64 || n < 0) {
            TRY(n, write, fd, at, n);
        }
        if (n >= 0 && n <= 64)
            TRY(n, sendto, fd, at, n, 0, 0, 0);
        if (n >= 0 && n < 1l << 62) {
            /* As much as there is room for; what is behind cannot be read. */
            TRY(n, sendfile, fd, file, (long)&(off_t){0}, n > 64 ? 64 : n);
        }
        TRY(n, sendfile, fd, file, (long)&(off_t){n < 0 ? n : LONG_MAX}, 10);
        TRY(n, splice, pipes[0], 0, fd, 0, n, SPLICE_F_NONBLOCK);
        TRY(n, splice, fd, 0, pipes[1], 0, n < 0 || n > 64 ? 19 : n, SPLICE_F_NONBLOCK);
    }
}

static void counts(void)
{
    int fd = ends[0];
    static struct iovec parts[2000];
    for (int n = 0; n < 2000; n++)
        parts[n] = (struct iovec){bytes, n % 3 == 0};
    EACH(n) {
        TRY(n, readv, fd, (long)parts, n);
        TRY(n, writev, fd, (long)parts, n);
        TRY(n, preadv2, fd, (long)parts, n, -1, 0, 0);
        TRY(n, pwritev2, fd, (long)parts, n, -1, 0, 0);
        TRY(n, preadv2, fd, (long)parts, 2, n, n, 0);
        TRY(n, pwritev2, fd, (long)parts, 2, n, n, 0);
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = n};
        TRY(n, recvmsg, fd, (long)&message, 0);
        TRY(n, sendmsg, fd, (long)&message, 0);
        /* One part has an odd length, alone and behind another. */
        struct iovec odd[2] = {{bytes, 8}, {bytes, n}};
        for (int m = 0; m < 2; m++) {
            message = (struct msghdr){.msg_iov = odd + 1 - m, .msg_iovlen = 1 + m};
            TRY(n, readv, fd, (long)(odd + 1 - m), 1 + m);
            TRY(n, recvmsg, fd, (long)&message, 0);
            if (n < 64) {
                TRY(n, writev, fd, (long)(odd + 1 - m), 1 + m);
                TRY(n, sendmsg, fd, (long)&message, 0);
            }
        }
        struct sockaddr_storage name;
        struct iovec part = {bytes, 16};
        message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_name = &name, .msg_namelen = n};
        memset(&name, 0, sizeof name);
        name.ss_family = AF_INET;
        TRY(n, recvmsg, fd, (long)&message, 0);
        printf("%d\n", message.msg_namelen);
        message.msg_namelen = n;
        TRY(n, sendmsg, fd, (long)&message, 0);
        message.msg_name = 0;
        TRY(n, sendmsg, fd, (long)&message, 0);
        message.msg_namelen = n;
        TRY(n, recvmsg, fd, (long)&message, 0);
        TRY(n, sendto, fd, (long)bytes, 16, 0, (long)&name, n);
        TRY(n, sendto, fd, (long)bytes, 16, 0, 0, n);
        socklen_t room = n;
        TRY(n, recvfrom, fd, (long)bytes, 16, 0, (long)&name, (long)&room);
        printf("%d\n", room);
        TRY(n, connect, fd, (long)&name, n);
        TRY(n, bind, fd, (long)&name, n);
        room = n;
        TRY(n, getpeername, fd, (long)&name, (long)&room);
        printf("%d\n", room);
        room = n;
        TRY(n, getsockname, fd, (long)&name, (long)&room);
        TRY(n, shutdown, fd, (int)n > 2 || (int)n < 0 ? n : 3);
        TRY(n, socket, AF_INET, n > 6 || n < 1 ? n : 0, 0);
        if (n < 2 || n > 1024) {
            struct mmsghdr messages[2] = {{{.msg_iov = &part, .msg_iovlen = 1}}, {{.msg_iov = &part, .msg_iovlen = 1}}};
            if ((unsigned)n < 3) {
                TRY(n, recvmmsg, fd, (long)messages, n, 0, 0);
                TRY(n, sendmmsg, fd, (long)messages, n, 0);
            }
            struct timespec time = {n, n};
            TRY(n, recvmmsg, fd, (long)messages, 2, MSG_DONTWAIT, (long)&time);
            TRY(n, ppoll, (long)&(struct pollfd){fd, POLLIN}, 1, (long)&time, 0, 8);
            time = (struct timespec){n, 0};
            TRY(n, ppoll, (long)&(struct pollfd){fd, POLLIN}, 1, (long)&time, 0, 8);
        }
    }
}

static void waits(void)
{
    int fd = ends[0];
    struct epoll_event event = {.events = EPOLLIN}, events[64];
    sigset_t mask;
    sigemptyset(&mask);
    struct timespec soon = {0, 1000};
    for (int member = 0; member < 2; member++) {
        EACH(n) {
            struct pollfd fds[64] = {{fd, POLLIN}};
            for (int m = 1; m < 64; m++)
                fds[m].fd = -1;
            if (n >= 0 && n <= 64 || (unsigned)n > 1 << 20)
                TRY(n, poll, (long)fds, n, 0);
            if (n < 0 || n < 5)
                TRY(n, poll, (long)fds, 1, n);
            TRY(n, ppoll, (long)fds, 1, (long)&soon, (long)&mask, n);
            struct timeval moment = {n, 0}, odd = {0, n};
            fd_set set;
            for (int m = 0; m < 3; m++) {
                FD_ZERO(&set);
                FD_SET(fd, &set);
                struct timeval *time = m == 0 ? &moment : m == 1 ? &odd : &(struct timeval){0, 0};
                if (m < 2)
                    TRY(n, select, fd + 1, (long)&set, 0, 0, (long)time);
                else if (n < 0 || n > INT_MAX || n < 65)
                    TRY(n, select, n, (long)&set, 0, 0, (long)time);
            }
            TRY(n, epoll_wait, epoll, (long)events, n > 64 ? 64 + (n & ~0x7fffffff) : n, 0);
            TRY(n, epoll_pwait, epoll, (long)events, 1, 0, (long)&mask, n);
            struct timespec time = {0, n};
            TRY(n, epoll_pwait2, epoll, (long)events, 1, (long)&time, 0, 8);
            time = (struct timespec){n < 0 ? n : 0, 0};
            TRY(n, epoll_pwait2, epoll, (long)events, 1, (long)&time, (long)&mask, n);
            TRY(n, epoll_ctl, epoll, n > 3 || n < 1 ? n : 0, fd, (long)&event);
            TRY(n, epoll_ctl, epoll, EPOLL_CTL_ADD, n < 3 || n > 100 ? epoll : 1000, (long)&event);
        }
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    }
}

/* Buffers and their use, names and moments: different each time, or by the kernel's mood. */
static const int ODD[][2] = {
    {SOL_SOCKET, SO_LINGER}, {SOL_SOCKET, SO_RCVTIMEO}, {SOL_SOCKET, SO_SNDTIMEO},
    {SOL_SOCKET, SO_PEERCRED}, {SOL_SOCKET, SO_PEERNAME}, {SOL_SOCKET, SO_RCVLOWAT}, {SOL_SOCKET, SO_MEMINFO},
    {SOL_SOCKET, SO_INCOMING_NAPI_ID}, {SOL_SOCKET, SO_COOKIE}, {SOL_SOCKET, SO_INCOMING_CPU},
    {SOL_SOCKET, 62}, {SOL_SOCKET, 75}, {SOL_SOCKET, 77}, {IPPROTO_TCP, TCP_MAXSEG},
    {IPPROTO_TCP, TCP_WINDOW_CLAMP}, {IPPROTO_TCP, TCP_INFO}, {IPPROTO_TCP, TCP_CONGESTION},
    {IPPROTO_TCP, TCP_MD5SIG}, {IPPROTO_TCP, TCP_REPAIR}, {IPPROTO_TCP, TCP_TIMESTAMP}, {IPPROTO_TCP, TCP_QUICKACK},
    {IPPROTO_TCP, TCP_NOTSENT_LOWAT}, {IPPROTO_TCP, TCP_CC_INFO}, {IPPROTO_TCP, TCP_ULP},
    {IPPROTO_TCP, 32}, {IPPROTO_TCP, 35}, {IPPROTO_TCP, 38},
};

static void options(void)
{
    int fd = ends[0];
    static const int LEVELS[] = {SOL_SOCKET, IPPROTO_TCP, 1000};
    for (int level = 0; level < 3; level++)
        for (int option = 0; option < 80; option++) {
            /* Calls that change the connection for good, or have another answer each time. */
            int is_odd = 0;
            for (int n = 0; n < sizeof ODD / sizeof *ODD; n++)
                is_odd |= ODD[n][0] == LEVELS[level] && ODD[n][1] == option;
            static const long SIZES[] = {0, 1, 3, 4, 5, 16, -1, INT_MIN};
            for (int size = 0; size < 8; size++) {
                char value[128] = {0};
                socklen_t length = SIZES[size];
                if (!is_odd) {
                    TRY(level << 16 | option, getsockopt, fd, LEVELS[level], option, (long)value, (long)&length);
                    printf("size %ld: %d, %08x\n", SIZES[size], length, *(unsigned *)value);
                }
                if (SIZES[size] < 4 || option == SO_RCVTIMEO)
                    TRY(level << 16 | option, setsockopt, fd, LEVELS[level], option, (long)value, SIZES[size]);
            }
        }
    EACH(n) {
        TRY(n, ioctl, fd, n == FIONBIO ? 0 : n, (long)many);
        if ((unsigned)n > 100 || n < 0)
            TRY(n, fcntl, fd, n, 0);
        if ((unsigned)n > 1 << 20)
            TRY(n, fcntl, fd, F_DUPFD, n);
        TRY(n, dup2, fd, (unsigned)n > 1 << 20 ? n : fd);
        TRY(n, dup3, fd, (unsigned)n > 1 << 20 ? n : fd, 0);
        TRY(n, close_range, 5000, n < 5000 && n > 0 ? n : 4000, n);
        TRY(n, epoll_create, n > 0 && (int)n > 0 ? 0 : n);
    }
}

int main(void)
{
    char byte;
    static void (*const GROUPS[])(void) = {lengths, counts, waits, options};
    setvbuf(stdout, 0, _IOFBF, 1 << 16);
    many = calloc(1, 1 << 16);
    file = open("/proc/self/exe", O_RDONLY);
    if (pipe2(pipes, O_NONBLOCK))
        abort();
    signal(SIGPIPE, SIG_IGN);
    printf("each shape\n");
    static const int families[] = {AF_INET, AF_UNIX};
    for (int n = 0; n < 2; n++) {
        family = families[n];
        printf("Family %d\n", family);
        for (int group = 0; group < 4 + 32; group++) {
            int found[2];
            connect_ends();
            settle(found);
            if (group < 4)
                GROUPS[group]();
            else
                flag(group - 4);
            close(epoll);
            close(listener);
            close(ends[0]);
            close(ends[1]);
            close(100);
        }
    }
    printf("all is well\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
