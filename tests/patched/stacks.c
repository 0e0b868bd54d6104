/* Each call that the library answers, in a thread with the smallest stack that there is
 * (PTHREAD_STACK_MIN). Prints the calls' answers, and those that take more of the stack than they
 * may, then waits for the end of its standard input. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "both.h"

#define STACK 16384
#define MAY_TAKE 10240
#define MANY 200

static int pipes[2], file, epoll, number;
static char bytes[100000];

static long sends(void) { return write(ends[0], bytes, 1000); }
static long sends_much(void) { return write(ends[0], bytes, 100000); }
static long receives(void) { return read(ends[0], bytes, 1000); }
static long peeks(void) { return recv(ends[0], bytes, 1000, MSG_PEEK); }
static long sends_a_file(void) { return sendfile(ends[0], file, &(off_t){0}, 70000); }
static long sends_some_of_a_file(void) { return sendfile(ends[0], file, &(off_t){0}, 10); }
static long splices_in(void) { return splice(pipes[0], 0, ends[0], 0, 100, 0); }
static long splices_out(void) { return splice(ends[0], 0, pipes[1], 0, 100, 0); }
static long polls(void) { return poll(&(struct pollfd){ends[0], POLLIN}, 1, -1); }
static long polls_in_vain(void) { return poll(&(struct pollfd){ends[0], POLLPRI}, 1, 1); }
static long waits(void) { return epoll_wait(epoll, &(struct epoll_event){}, 1, -1); }
static long asks(void) { int n; return ioctl(ends[0], FIONREAD, &n) ? -1 : n; }
static long executes(void) { return system("exit 3"); }

static long sends_message(void)
{
    struct iovec parts[3] = {{bytes, 10}, {bytes, 1000}, {bytes, 0}};
    return sendmsg(ends[0], &(struct msghdr){.msg_iov = parts, .msg_iovlen = 3}, 0);
}

static long receives_message(void)
{
    struct iovec parts[3] = {{bytes, 10}, {bytes, 0}, {bytes, 1000}};
    return recvmsg(ends[0], &(struct msghdr){.msg_iov = parts, .msg_iovlen = 3}, 0);
}

static long sends_parts(void)
{
    struct iovec parts[3] = {{bytes, 10}, {bytes, 1000}, {bytes, 0}};
    return writev(ends[0], parts, 3);
}

static long selects(void)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    return select(ends[0] + 1, &set, 0, 0, 0);
}

static long registers(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(epoll, EPOLL_CTL_DEL, ends[0], 0) | epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event);
}

static long reads_as_stream(void)
{
    static char buffer[20];
    int copy = dup(ends[0]);
    FILE *stream = fdopen(copy, "r");
    setvbuf(stream, buffer, _IOFBF, sizeof buffer);
    int got = fgetc(stream);
    fclose(stream);
    return got;
}

static long locks(void)
{
    return mlockall(MCL_CURRENT | MCL_FUTURE) | munlockall();
}

static struct {
    const char *name;
    long (*call)(void);
} const CALLS[] = {
    {"write", sends}, {"write much", sends_much}, {"read", receives}, {"peek", peeks},
    {"sendfile", sends_a_file}, {"sendfile of little", sends_some_of_a_file},
    {"splice to it", splices_in}, {"splice from it", splices_out}, {"poll", polls},
    {"poll in vain", polls_in_vain}, {"epoll_wait", waits}, {"epoll_ctl", registers},
    {"select", selects}, {"ioctl", asks}, {"sendmsg", sends_message}, {"recvmsg", receives_message},
    {"writev", sends_parts}, {"system", executes}, {"mlockall", locks},
    {"stdio", reads_as_stream},
};
#define CALLS_COUNT (sizeof CALLS / sizeof *CALLS)

static long answer;

static void *run(void *unused)
{
    answer = CALLS[number].call();
    return 0;
}

/* Leaves the same in each direction before each call, and takes what the last one has sent. */
static void settle(void)
{
    struct pollfd one = {ends[1], POLLIN};
    while (poll(&one, 1, 20) > 0)
        if (recv(ends[1], bytes, sizeof bytes, MSG_DONTWAIT) <= 0)
            abort();
    while (recv(ends[0], bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
    while (read(pipes[0], bytes, sizeof bytes) > 0)
        ;
    memset(bytes, 'b', sizeof bytes);
    if (write(ends[1], bytes, 3000) != 3000 || write(pipes[1], bytes, 100) != 100)
        abort();
    one.fd = ends[0];
    poll(&one, 1, -1);
}

static void measure(void)
{
    unsigned char *stack = mmap(0, 2 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t attributes;
    pthread_t thread;
    int base = 0, room;
    mprotect(stack, STACK, PROT_NONE);
    stack += STACK;
    memset(stack, 0xa5, STACK);
    pthread_attr_init(&attributes);
    if (pthread_attr_setstack(&attributes, stack, STACK) || pthread_create(&thread, &attributes, run, 0))
        abort();
    pthread_join(thread, 0);
    while (base < STACK && stack[base] == 0xa5)
        base++;
    room = STACK - base;
    printf("%s: %ld", CALLS[number].name, answer);
    if (room > MAY_TAKE)
        printf(", takes %d bytes", room);
    printf("\n");
    munmap(stack - STACK, 2 * STACK);
}

int main(void)
{
    char byte;
    setvbuf(stdout, 0, _IOLBF, 1 << 12);
    char name[] = "/tmp/stacks-XXXXXX";
    file = mkstemp(name);
    unlink(name);
    if (write(file, bytes, sizeof bytes) != sizeof bytes || pipe2(pipes, O_NONBLOCK))
        abort();
    connect_both();
    warm_up();
    epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event);
    printf("each call\n");
    for (number = 0; number < CALLS_COUNT; number++) {
        settle();
        measure();
    }
    printf("all is well\n");
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
