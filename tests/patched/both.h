/* A connection of a program with itself. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static int ends[2], listener;

/* Of the family AF_INET or AF_UNIX. Without Nagle's algorithm: on the kernel each second write would
 * wait for the acknowledgement of the first, which is delayed by 40 ms. */
static inline void connect_both_of(int family)
{
    struct sockaddr_storage address = {.ss_family = family};
    socklen_t length = family == AF_UNIX ? sizeof(sa_family_t) : sizeof(struct sockaddr_in);
    if (family == AF_INET)
        ((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(family, SOCK_STREAM, 0);
    ends[0] = socket(family, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1))
        abort();
    length = sizeof address;
    if (getsockname(listener, (struct sockaddr *)&address, &length) ||
        connect(ends[0], (struct sockaddr *)&address, length))
        abort();
    ends[1] = accept(listener, 0, 0);
    for (int n = 0; family == AF_INET && n < 2; n++)
        setsockopt(ends[n], IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

static inline void connect_both(void)
{
    connect_both_of(AF_INET);
}

/* So many exchanges, with a pause now and then in which an adapter runs. */
static inline void exchange(int rounds)
{
    char byte;
    for (int n = 0; n < rounds; n++) {
        if (write(ends[0], "x", 1) != 1 || read(ends[1], &byte, 1) != 1 ||
            write(ends[1], "y", 1) != 1 || read(ends[0], &byte, 1) != 1)
            abort();
        if (n % (rounds / 20) == 0)
            usleep(1000);
    }
}

/* Both directions move to shared memory, where there is the library. */
static inline void warm_up(void)
{
    exchange(20000);
}
