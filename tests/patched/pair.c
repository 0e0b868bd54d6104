/* How long a write of 64 bytes and a read of them take on a connection of which this thread has both
 * ends: the least of 41 rounds, in nanoseconds. */
#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

int main(void)
{
    enum { BYTES = 64, FIRST = 2000, PAUSE = 100, ROUNDS = 41, PAIRS = 20000 };
    struct sockaddr_in address = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&address, length) || listen(listener, 1) ||
        getsockname(listener, (void *)&address, &length) ||
        connect(client, (void *)&address, length))
        return 1;
    int server = accept(listener, 0, 0);
    char bytes[BYTES] = {0};
    double least = 1e18;
    for (int round = -FIRST; round < ROUNDS; round++) {
        int pairs = round < 0 ? 1 : PAIRS;
        double start = now_ns();
        for (int pair = 0; pair < pairs; pair++)
            if (write(client, bytes, BYTES) != BYTES || read(server, bytes, BYTES) != BYTES)
                return 2;
        double took = (now_ns() - start) / pairs;
        if (round >= 0 && took < least)
            least = took;
        /* Time for the adapter, until both ends have a channel. */
        if (round < 0 && round % PAUSE == 0)
            usleep(2000);
    }
    printf("%.1f ns\n", least);
    return 0;
}
