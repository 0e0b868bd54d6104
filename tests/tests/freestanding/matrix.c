/* What a program does with sockets, threads, children, exec, dlopen and signals: one word for each
   that went as it should. A connection to itself is used until its bytes pass through shared memory
   (or, with the word "plain" as argument, only for a while). */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static int near_end, far_end;
static volatile sig_atomic_t signals;

static void fail(const char *what)
{
    printf("FAILED %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(1);
}

static int is_shared(void)
{
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && !found && fgets(line, sizeof line, maps))
        found = strstr(line, "toehold-slab") != NULL;
    if (maps)
        fclose(maps);
    return found;
}

static void connect_to_self(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (void *)&address, len) || listen(listener, 5))
        fail("listen");
    if (getsockname(listener, (void *)&address, &len))
        fail("getsockname");
    near_end = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(near_end, (void *)&address, len))
        fail("connect");
    far_end = accept(listener, NULL, NULL);
    if (far_end < 0)
        fail("accept");
    close(listener);
}

static void exchange(int rounds)
{
    char sent[300], got[300];
    for (int round = 0; round < rounds; round++) {
        size_t len = 1 + round % sizeof sent;
        memset(sent, round, len);
        struct iovec parts[2] = {{sent, len / 2}, {sent + len / 2, len - len / 2}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t put = round % 3 == 0   ? send(near_end, sent, len, 0)
                      : round % 3 == 1 ? write(near_end, sent, len)
                                       : sendmsg(near_end, &message, 0);
        if (put != (ssize_t)len)
            fail("send");
        if (recv(far_end, got, len, MSG_WAITALL) != (ssize_t)len || memcmp(sent, got, len))
            fail("recv");
        errno = EXDEV;
        if (recv(far_end, got, 1, MSG_DONTWAIT) != -1 || errno != EAGAIN)
            fail("errno");
    }
}

static void *thread(void *argument)
{
    errno = 0;
    if (close(-1) != -1 || errno != EBADF)
        fail("errno of a thread");
    exchange(50);
    return argument;
}

static void handler(int signal)
{
    signals += signal == SIGUSR1;
}

static void use_epoll(void)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = far_end}, got;
    struct pollfd one = {far_end, POLLIN, 0};
    char byte;
    int epoll = epoll_create1(0);
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, far_end, &event) || epoll_wait(epoll, &got, 1, 0) != 0)
        fail("epoll");
    if (send(near_end, "x", 1, 0) != 1 || epoll_wait(epoll, &got, 1, 5000) != 1
        || got.data.fd != far_end || poll(&one, 1, 5000) != 1 || read(far_end, &byte, 1) != 1)
        fail("readiness");
    close(epoll);
}

int main(int count, char **arguments)
{
    int status, plain = count > 1 && strcmp(arguments[1], "plain") == 0;
    if (count > 1 && strcmp(arguments[1], "again") == 0) {
        puts("exec");
        return 0;
    }
    setvbuf(stdout, NULL, _IONBF, 0);
    puts("start");

    connect_to_self();
    for (int turn = 0; turn < 500 && !is_shared(); turn++) {
        exchange(300);
        if (plain && turn == 3)
            break;
    }
    exchange(300);
    use_epoll();
    puts(is_shared() ? "sockets shared" : "sockets kernel");

    pthread_t other;
    if (pthread_create(&other, NULL, thread, NULL) || pthread_join(other, NULL))
        fail("thread");
    puts("threads");

    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        exchange(50);
        _exit(7);
    }
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
        fail("fork");
    exchange(50);
    puts("fork");

    void *object = dlopen(NULL, RTLD_NOW);
    printf("%s\n", object && dlsym(object, "getpid") ? "dlopen" : "no dlopen");

    signal(SIGUSR1, handler);
    for (int n = 0; n < 100; n++)
        raise(SIGUSR1);
    if (signals != 100)
        fail("signals");
    puts("signals");

    execl(arguments[0], arguments[0], "again", (char *)NULL);
    fail("exec");
}
