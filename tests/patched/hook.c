/* How long a read takes that the library passes on: the least of 21 rounds, in nanoseconds. */
#include <fcntl.h>
#include <stdio.h>
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
    enum { ROUNDS = 21, CALLS = 500000 };
    int fd = open("/dev/null", O_RDONLY);
    double least = 1e18;
    char byte;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_ns();
        for (int call = 0; call < CALLS; call++)
            if (read(fd, &byte, 1) != 0)
                return 1;
        double took = (now_ns() - start) / CALLS;
        least = took < least ? took : least;
    }
    printf("%.1f ns\n", least);
    return 0;
}
