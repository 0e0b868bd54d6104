/* Threads that are cancelled while they wait for connections, between their calls, and never.
 * Prints what must be equal with and without patches, then waits for the end of its standard input.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>

#include "both.h"

#define SLEEPS 4000

static int cleaned;

/* A call of a thread that ends. It is no cancellation point any more. */
static void clean(void *nothing)
{
    char byte = 'c';
    (void)nothing;
    if (write(ends[1], &byte, 1) != 1)
        abort();
    cleaned++;
}

static void *wait_in(void *number)
{
    struct pollfd one = {ends[1], POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    int instance;
    char bytes[4096] = {0};
    pthread_cleanup_push(clean, 0);
    switch ((int)(long)number) {
    case 0:
        (void)!read(ends[1], bytes, 1);
        break;
    case 1:
        recv(ends[1], bytes, sizeof bytes, 0);
        break;
    case 2:
        poll(&one, 1, -1);
        break;
    case 3:
        instance = epoll_create1(0);
        epoll_ctl(instance, EPOLL_CTL_ADD, ends[1], &event);
        epoll_wait(instance, &event, 1, -1);
        break;
    case 4:
        accept(listener, 0, 0);
        break;
    case 5:
        pause();
        break;
    default:
        /* Its calls do not wait. */
        for (;;) {
            if (recv(ends[1], bytes, 1, MSG_DONTWAIT) > 0)
                abort();
        }
    }
    abort();
    pthread_cleanup_pop(0);
    return 0;
}

static void *wait_uncancelled(void *nothing)
{
    char byte = 0;
    int before;
    (void)nothing;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    if (read(ends[1], &byte, 1) != 1 || byte != 'u')
        abort();
    pthread_setcancelstate(before, 0);
    pthread_testcancel();
    abort();
}

static void end(pthread_t thread)
{
    void *result;
    if (pthread_join(thread, &result) || result != PTHREAD_CANCELED)
        abort();
}

/* Threads are cancelled in calls of the kernel. They do not keep the connection from moving. */
static void cancel_first(void)
{
    char byte;
    pthread_t thread;
    for (long n = 0; n < 2; n++) {
        if (pthread_create(&thread, 0, wait_in, (void *)n))
            abort();
        usleep(200000); /* it waits for certain */
        if (pthread_cancel(thread))
            abort();
        end(thread);
        if (read(ends[0], &byte, 1) != 1)
            abort();
    }
}

int main(void)
{
    char byte;
    pthread_t thread;
    int rounds;
    connect_both();
    cancel_first();
    rounds = cleaned;
    warm_up();
    for (int n = 0; n < 700; n++) {
        if (pthread_create(&thread, 0, wait_in, (void *)(long)(n % 7)))
            abort();
        /* Before it waits, and when it does. */
        if (n == 0)
            usleep(200000); /* the first waits for certain */
        else if (n % 3)
            usleep(n % 3 == 1 ? 2000 : n % 100);
        if (pthread_cancel(thread))
            abort();
        end(thread);
        if (cleaned > rounds && read(ends[0], &byte, 1) != 1)
            abort();
        rounds = cleaned;
    }
    for (int n = 0; n < 20; n++) {
        if (pthread_create(&thread, 0, wait_uncancelled, 0))
            abort();
        usleep(1000);
        pthread_cancel(thread);
        usleep(1000);
        if (write(ends[0], "u", 1) != 1)
            abort();
        end(thread);
    }
    /* Nobody sleeps on the connection any more: a byte that is there before the next read needs no
     * doorbell, also after a sleep that ends in time. */
    for (int n = 0; n < SLEEPS; n++) {
        struct pollfd one = {ends[1], POLLIN, 0};
        struct timespec time = {0, 300000};
        if (ppoll(&one, 1, &time, 0) != 0 || write(ends[0], "z", 1) != 1 ||
            read(ends[1], &byte, 1) != 1)
            abort();
    }
    printf("all were cancelled; %s cleaned\n", cleaned > 400 ? "most have" : "few have");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
