/* Threads that are cancelled at any moment (PTHREAD_CANCEL_ASYNCHRONOUS) while they use connections.
 * The connections serve other threads after that. Prints what must be equal with and without the
 * library, then waits for the end of its standard input. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>

#include "both.h"

/* Its calls do not wait, except the last kind. */
static void *use(void *number)
{
    struct pollfd one = {ends[1], POLLIN | POLLOUT, 0};
    char bytes[512] = {0};
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
    for (;;) {
        switch ((int)(long)number) {
        case 0:
            recv(ends[1], bytes, sizeof bytes, MSG_DONTWAIT);
            break;
        case 1:
            send(ends[1], bytes, 1, MSG_DONTWAIT);
            break;
        case 2:
            poll(&one, 1, 0);
            break;
        case 3:
            setsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &(int){1}, sizeof(int));
            break;
        default:
            if (read(ends[1], bytes, 1) < 0)
                abort();
        }
    }
}

/* One that is not cancelled for now goes on with its call. */
static void *stay(void *result)
{
    char byte;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, 0);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
    *(long *)result = read(ends[1], &byte, 1);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, 0);
    pthread_testcancel();
    return 0;
}

static void check_staying(void)
{
    long count = 0;
    pthread_t thread;
    void *result;
    if (pthread_create(&thread, 0, stay, &count))
        abort();
    usleep(2000);
    pthread_cancel(thread);
    usleep(2000);
    if (write(ends[0], "w", 1) != 1 || pthread_join(thread, &result) ||
        result != PTHREAD_CANCELED || count != 1)
        abort();
}

int main(void)
{
    char byte;
    pthread_t thread;
    void *result;
    connect_both();
    warm_up();
    for (int n = 0; n < 2000; n++) {
        if (pthread_create(&thread, 0, use, (void *)(long)(n % 5)))
            abort();
        usleep(n % 100);
        if (pthread_cancel(thread) || pthread_join(thread, &result) || result != PTHREAD_CANCELED)
            abort();
        /* Both directions serve the next ones, and each end waits. Behind bytes of the thread's. */
        if (write(ends[0], "u", 1) != 1 || read(ends[1], &byte, 1) != 1 || byte != 'u' ||
            write(ends[1], "v", 1) != 1)
            abort();
        do {
            if (read(ends[0], &byte, 1) != 1)
                abort();
        } while (byte != 'v');
    }
    for (int n = 0; n < 20; n++)
        check_staying();
    printf("all were cancelled, and the connection is whole\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
