/* Threads that are cancelled at any moment (PTHREAD_CANCEL_ASYNCHRONOUS) while they use connections.
 * The connections serve other threads after that. Prints what must be equal with and without the
 * library, then waits for the end of its standard input. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static int ends[2];

static void connect_both(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&address, &length) ||
        connect(ends[0], (struct sockaddr *)&address, length))
        abort();
    ends[1] = accept(listener, 0, 0);
    close(listener);
    for (int n = 0; n < 2; n++)
        setsockopt(ends[n], IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

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

int main(void)
{
    char byte;
    pthread_t thread;
    void *result;
    connect_both();
    for (int n = 0; n < 20000; n++) {
        if (write(ends[0], "x", 1) != 1 || read(ends[1], &byte, 1) != 1 ||
            write(ends[1], "y", 1) != 1 || read(ends[0], &byte, 1) != 1)
            abort();
        if (n % 1000 == 0)
            usleep(1000);
    }
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
    printf("all were cancelled, and the connection is whole\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
