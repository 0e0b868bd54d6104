/* Threads that are cancelled while they wait in a call, of each kind. Cleanup handlers run, and the
 * connection serves the next calls, of other threads. Prints what must be equal with and without
 * the library, then waits for the end of its standard input. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "both.h"

enum way {
    READ, READV, RECV, RECV_ALL, RECVFROM, RECVMSG, SELECT, PSELECT, POLL, PPOLL, EPOLL, ACCEPT,
    ACCEPT4, WRITE, WRITEV, SEND, SENDTO, SENDMSG, WAYS
};

static char bytes[1 << 16];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile int cleaned, thread_number;

static void clean(void *kept)
{
    char byte;
    /* It has errno, its own memory, and calls. */
    if (*(int *)kept != 7 || read(-1, &byte, 1) != -1 || errno != EBADF)
        abort();
    cleaned++;
    pthread_mutex_unlock(&mutex);
}

static void make(enum way way)
{
    struct iovec piece = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    struct pollfd one = {ends[1], POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    fd_set set;
    int instance;
    FD_ZERO(&set);
    FD_SET(ends[1], &set);
    switch (way) {
    case READ: (void)!read(ends[1], bytes, 1); break;
    case READV: (void)!readv(ends[1], &piece, 1); break;
    case RECV: recv(ends[1], bytes, 1, 0); break;
    case RECV_ALL: recv(ends[1], bytes, 2, MSG_WAITALL); break;
    case RECVFROM: recvfrom(ends[1], bytes, 1, 0, 0, 0); break;
    case RECVMSG: recvmsg(ends[1], &message, 0); break;
    case SELECT: select(ends[1] + 1, &set, 0, 0, 0); break;
    case PSELECT: pselect(ends[1] + 1, &set, 0, 0, 0, 0); break;
    case POLL: poll(&one, 1, -1); break;
    case PPOLL: ppoll(&one, 1, 0, 0); break;
    case EPOLL:
        instance = epoll_create1(0);
        epoll_ctl(instance, EPOLL_CTL_ADD, ends[1], &event);
        epoll_wait(instance, &event, 1, -1);
        break;
    case ACCEPT: accept(listener, 0, 0); break;
    case ACCEPT4: accept4(listener, 0, 0, SOCK_CLOEXEC); break;
    case WRITE: (void)!write(ends[1], bytes, sizeof bytes); break;
    case WRITEV: (void)!writev(ends[1], &piece, 1); break;
    case SEND: send(ends[1], bytes, sizeof bytes, 0); break;
    case SENDTO: sendto(ends[1], bytes, sizeof bytes, 0, 0, 0); break;
    default: sendmsg(ends[1], &message, 0); break;
    }
}

static void *wait_in(void *way)
{
    int kept = 7;
    thread_number = syscall(SYS_gettid);
    pthread_mutex_lock(&mutex);
    pthread_cleanup_push(clean, &kept);
    for (;;)
        make((enum way)(long)way);
    pthread_cleanup_pop(0);
    return 0;
}

/* Waits until the thread sleeps. */
static void see_it_sleep(void)
{
    char path[64], text[512], *state;
    for (int sleeps = 0; sleeps < 3; usleep(1000)) {
        if (!thread_number)
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread_number);
        int stat = open(path, O_RDONLY);
        ssize_t length = read(stat, text, sizeof text - 1);
        close(stat);
        text[length > 0 ? length : 0] = 0;
        state = strrchr(text, ')');
        sleeps = state && state[2] == 'S' ? sleeps + 1 : 0;
    }
}

/* No room is left in the direction from ends[1]. */
static void fill(void)
{
    for (int idle = 0; idle < 5; usleep(2000)) {
        idle++;
        while (send(ends[1], bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            idle = 0;
    }
}

/* All bytes are taken of both directions. The last of them are "e", sent from each end. */
static void check_ends(void)
{
    static char taken[sizeof bytes];
    for (int n = 0; n < 2; n++) {
        ssize_t length = 0;
        struct pollfd room = {ends[n], POLLOUT, 0};
        while (poll(&room, 1, 0) == 0)
            if (recv(ends[!n], taken, sizeof taken, MSG_DONTWAIT) < 0 && errno != EAGAIN)
                abort();
        if (send(ends[n], "e", 1, 0) != 1)
            abort();
        do {
            length = read(ends[!n], taken, sizeof taken);
        } while (length > 0 && taken[length - 1] != 'e');
        if (length <= 0)
            abort();
    }
}

static void cancel_one(enum way way)
{
    pthread_t thread;
    void *result;
    int before = cleaned;
    if (way >= WRITE)
        fill();
    if (way == RECV_ALL && write(ends[0], "1", 1) != 1)
        abort();
    thread_number = 0;
    if (pthread_create(&thread, 0, wait_in, (void *)(long)way))
        abort();
    see_it_sleep();
    if (pthread_cancel(thread) || pthread_join(thread, &result))
        abort();
    if (result != PTHREAD_CANCELED || cleaned != before + 1 || pthread_mutex_trylock(&mutex))
        abort();
    pthread_mutex_unlock(&mutex);
    check_ends();
}

int main(void)
{
    char byte;
    memset(bytes, 'b', sizeof bytes);
    connect_both();
    /* First on the kernel, where nothing has moved yet. */
    for (int n = 0; n < 3; n++) {
        if (n == 1)
            warm_up();
        for (int way = 0; way < WAYS; way++)
            cancel_one((enum way)way);
    }
    printf("%d were cancelled and have cleaned\n", cleaned);
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
