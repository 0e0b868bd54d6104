/* Loads a library of Go (library.go), and has connections from Go to Go, from Go to C, and from C to
 * Go. It is linked with the library (LINKED), or opens it (LIBRARY is its path): first, or beside
 * threads and connections (LATE); beside copies of it (COPIES is their number), with its own names
 * before those of others (DEEP), or with a libc of its own (APART). Prints how many round trips were
 * wrong, then waits for the end of its standard input. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONNECTIONS = 4, TRIPS = 2000 };

#ifdef LINKED
extern int serve(void), ask(int, int, int);
extern void finish(void);
#else
static int (*serve)(void), (*ask)(int, int, int);
static void (*finish)(void);

static void *function(void *library, const char *name)
{
    void *found = library ? dlsym(library, name) : 0;
    if (!found)
        abort();
    return found;
}

static void open_library(void)
{
#ifdef COPIES
    for (int n = 0; n < COPIES; n++) {
        char path[4096];
        snprintf(path, sizeof path, "%s.%d", LIBRARY, n);
        /* It begins in a thread of its own, which reserves address space near the next. */
        int (*begun)(void) = function(dlopen(path, RTLD_NOW), "begun");
        if (!begun())
            abort();
    }
#endif
#if defined APART
    void *library = dlmopen(LM_ID_NEWLM, LIBRARY, RTLD_NOW);
#elif defined DEEP
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_DEEPBIND);
#else
    void *library = dlopen(LIBRARY, RTLD_NOW);
#endif
    serve = function(library, "serve");
    ask = function(library, "ask");
    finish = function(library, "finish");
}
#endif

static void *echo(void *connection)
{
    char bytes[4096];
    long fd = (intptr_t)connection, got;
    while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0)
        if (send(fd, bytes, got, MSG_NOSIGNAL) != got)
            abort();
    return 0;
}

static void *accept_all(void *listener)
{
    for (;;) {
        pthread_t thread;
        long fd = accept4((intptr_t)listener, 0, 0, SOCK_CLOEXEC);
        if (fd < 0 || pthread_create(&thread, 0, echo, (void *)fd))
            abort();
    }
}

/* The port at which C sends back what it receives. */
static int serve_by_c(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    pthread_t thread;
    long listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, CONNECTIONS) ||
        getsockname(listener, (struct sockaddr *)&address, &length) ||
        pthread_create(&thread, 0, accept_all, (void *)listener))
        abort();
    return ntohs(address.sin_port);
}

static int ask_by_c(int port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char sent[3000], received[3000];
    int wrong = 0, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        abort();
    for (int n = 0; n < TRIPS; n++) {
        long length = 1 + n % (int)sizeof sent;
        memset(sent, n, length);
        if (send(fd, sent, length, 0) != length || recv(fd, received, length, MSG_WAITALL) != length)
            abort();
        wrong += memcmp(sent, received, length) != 0;
    }
    return wrong;
}

static void *ask_in_a_thread(void *port)
{
    return (void *)(intptr_t)ask((intptr_t)port, 1, TRIPS);
}

int main(void)
{
    char byte;
#if defined LATE
    int by_c = serve_by_c();
    int before = ask_by_c(by_c);
    open_library();
#else
#ifndef LINKED
    open_library();
#endif
    int by_c = serve_by_c(), before = 0;
#endif
    int by_go = serve(), wrong = before + ask(by_go, CONNECTIONS, TRIPS);
    wrong += ask(by_c, CONNECTIONS, TRIPS) + ask_by_c(by_go);
    pthread_t thread;
    void *result;
    if (pthread_create(&thread, 0, ask_in_a_thread, (void *)(intptr_t)by_go) ||
        pthread_join(thread, &result))
        abort();
    wrong += (intptr_t)result;
    finish();
    pid_t child = fork();
    if (child == 0)
        _exit(7);
    int status;
    if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7)
        abort();
    if (system("exit 3") != 3 << 8)
        abort();
    printf("%d wrong\n", wrong);
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    _exit(0);
}
