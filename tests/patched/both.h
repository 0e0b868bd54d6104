/* A connection of a program with itself. */
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static int ends[2], listener;

static void connect_both(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&address, &length) ||
        connect(ends[0], (struct sockaddr *)&address, length))
        abort();
    ends[1] = accept(listener, 0, 0);
}

/* Both directions move to shared memory, where there is the library. */
static void warm_up(void)
{
    char byte;
    for (int n = 0; n < 20000; n++) {
        if (write(ends[0], "x", 1) != 1 || read(ends[1], &byte, 1) != 1 ||
            write(ends[1], "y", 1) != 1 || read(ends[0], &byte, 1) != 1)
            abort();
        if (n % 1000 == 0)
            usleep(1000);
    }
}
