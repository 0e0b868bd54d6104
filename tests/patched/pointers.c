/* Each call that the library answers gets each of its pointers bad in each way, through each door.
 * Prints the answers, which must be the kernel's, then waits for the end of its standard input. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "both.h"
#include "doors.h"
#include "filter.h"

#define PAGE 4096

static int epoll, file, pipes[2];
static char *edge, *read_only;

static const char *const KINDS[] = {"null", "low", "far", "edge", "half", "whole", "read-only"};
#define KINDS_COUNT 7

/* Where an object is that is bad in one way. */
static void *place(int kind, const void *object, size_t size)
{
    char *at;
    switch (kind) {
    case 0: return 0;
    case 1: return (void *)8;
    case 2: return (void *)0x8000000000000008;
    case 3: return edge;
    case 4:
        memcpy(edge - size / 2, object, size / 2);
        return edge - size / 2;
    case 5: return memcpy(edge - size, object, size);
    }
    mprotect(read_only, PAGE, PROT_READ | PROT_WRITE);
    at = memcpy(read_only + 64, object, size);
    mprotect(read_only, PAGE, PROT_READ);
    return at;
}

/* Empties both ends and leaves a few bytes in each; how many there were. A mark tells that all of
 * them have arrived. */
static void settle(int *found)
{
    char bytes[8192];
    for (int n = 0; n < 2; n++) {
        struct pollfd one = {ends[n], POLLIN};
        ssize_t got, all = 0;
        if (write(ends[!n], "#", 1) != 1)
            abort();
        while (!all || bytes[all - 1] != '#') {
            poll(&one, 1, -1);
            got = read(ends[n], bytes + all, sizeof bytes - all);
            all += got > 0 ? got : 0;
        }
        found[n] = all - 1;
    }
    for (int n = 0; n < 2; n++)
        if (write(ends[n], "a few bytes of news", 19) != 19)
            abort();
    while (read(pipes[0], bytes, sizeof bytes) > 0)
        ;
    if (write(pipes[1], "ten bytes.", 10) != 10)
        abort();
}

static void say(const char *what, const char *kind, const char *door, long answer)
{
    int found[2], error = errno, later = 0;
    socklen_t four = 4;
    /* An error that the next call would tell. */
    getsockopt(ends[0], SOL_SOCKET, SO_ERROR, &later, &four);
    settle(found);
    printf("%s %s %s: %ld %d, left %d %d\n", what, kind, door, answer, answer < 0 ? error : later,
           found[0], found[1]);
}

/* One pointer of a call: the argument with this place. */
static void walk(const char *what, long number, const long *good, int at, const void *object,
                 size_t size)
{
    for (int kind = 0; kind < KINDS_COUNT; kind++)
        for (int door = 0; door < 3; door++) {
            long a[6], answer;
            memcpy(a, good, sizeof a);
            a[at] = (long)place(kind, object, size);
            if (enter(door, number, a, &answer))
                say(what, KINDS[kind], DOORS[door], answer);
        }
}

/* One pointer within an object that a call gets: the word at `field` of it. */
static void walk_within(const char *what, long number, const long *good, int at, void *object,
                        void *field, const void *inner, size_t size)
{
    long before;
    memcpy(&before, field, sizeof before);
    for (int kind = 0; kind < KINDS_COUNT; kind++)
        for (int door = 0; door < 3; door++) {
            long a[6], answer;
            void *bad = place(kind, inner, size);
            memcpy(field, &bad, sizeof bad);
            memcpy(a, good, sizeof a);
            a[at] = (long)object;
            if (enter(door, number, a, &answer))
                say(what, KINDS[kind], DOORS[door], answer);
        }
    memcpy(field, &before, sizeof before);
}

#define ARGUMENTS(...) ((const long[6]){__VA_ARGS__})
#define WALK(name, at, object, ...) \
    walk(#name " " #at, SYS_##name, ARGUMENTS(__VA_ARGS__), at, &object, sizeof object)
#define WITHIN(name, at, object, field, inner, ...) \
    walk_within(#name " " #field, SYS_##name, ARGUMENTS(__VA_ARGS__), at, &object, &field, &inner, \
                sizeof inner)

static void move_bytes(void)
{
    int fd = ends[0];
    char bytes[16] = "sixteen bytes..", many[3000] = "", name[128], control[64];
    struct iovec parts[2] = {{bytes, 16}, {bytes, 16}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    struct mmsghdr messages[2] = {{message}, {message}};
    struct timespec soon = {0, 1000};
    socklen_t room = sizeof name;

    WALK(read, 1, bytes, fd, 0, 16);
    WALK(read, 1, bytes, fd, 0, 15);
    WALK(read, 1, many, fd, 0, sizeof many);
    WALK(write, 1, bytes, fd, 0, 16);
    WALK(write, 1, bytes, fd, 0, 15);
    WALK(write, 1, many, fd, 0, sizeof many);
    WALK(readv, 1, parts, fd, 0, 2);
    WITHIN(readv, 1, parts, parts[0].iov_base, bytes, fd, 0, 2);
    WALK(writev, 1, parts, fd, 0, 2);
    WITHIN(writev, 1, parts, parts[0].iov_base, bytes, fd, 0, 2);
    WALK(preadv2, 1, parts, fd, 0, 2, -1, 0, 0);
    WALK(pwritev2, 1, parts, fd, 0, 2, -1, 0, 0);
    WALK(recvfrom, 1, bytes, fd, 0, 16, 0, 0, 0);
    WALK(recvfrom, 1, bytes, fd, 0, 16, MSG_PEEK, 0, 0);
    WALK(recvfrom, 4, name, fd, (long)bytes, 16, 0, 0, (long)&room);
    WALK(recvfrom, 5, room, fd, (long)bytes, 16, 0, (long)name, 0);
    WALK(sendto, 1, bytes, fd, 0, 16, 0, 0, 0);
    WALK(sendto, 1, bytes, fd, 0, 15, MSG_DONTWAIT, 0, 0);
    WALK(sendto, 4, name, fd, (long)bytes, 16, 0, 0, 16);
    WALK(recvmsg, 1, message, fd, 0, 0);
    WITHIN(recvmsg, 1, message, message.msg_iov, parts, fd, 0, 0);
    WITHIN(recvmsg, 1, message, parts[1].iov_base, bytes, fd, 0, 0);
    message.msg_namelen = sizeof name;
    WITHIN(recvmsg, 1, message, message.msg_name, name, fd, 0, 0);
    message.msg_namelen = 0;
    message.msg_controllen = sizeof control;
    WITHIN(recvmsg, 1, message, message.msg_control, control, fd, 0, 0);
    message.msg_controllen = 0;
    WALK(sendmsg, 1, message, fd, 0, 0);
    WITHIN(sendmsg, 1, message, message.msg_iov, parts, fd, 0, 0);
    WITHIN(sendmsg, 1, message, parts[0].iov_base, bytes, fd, 0, 0);
    message.msg_namelen = 16;
    WITHIN(sendmsg, 1, message, message.msg_name, name, fd, 0, 0);
    message.msg_namelen = 0;
    WALK(recvmmsg, 1, messages, fd, 0, 2, MSG_DONTWAIT, 0);
    WITHIN(recvmmsg, 1, messages, messages[1].msg_hdr.msg_iov, parts, fd, 0, 2, MSG_DONTWAIT, 0);
    WALK(recvmmsg, 4, soon, fd, (long)messages, 2, MSG_DONTWAIT, 0);
    WALK(sendmmsg, 1, messages, fd, 0, 2, 0);
    WITHIN(sendmmsg, 1, messages, messages[1].msg_hdr.msg_iov, parts, fd, 0, 2, 0);
}

static void pass_bytes(void)
{
    int fd = ends[0];
    /* A control message that the kernel passes over. */
    struct { struct cmsghdr header; int value; } control = {{.cmsg_len = sizeof control}};
    struct iovec part = {&control, 16};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_controllen = sizeof control};
    loff_t offset = 0;
    control.header.cmsg_level = IPPROTO_TCP;
    control.header.cmsg_type = 1;
    WALK(sendfile, 2, offset, fd, file, 0, 10);
    WALK(splice, 1, offset, file, 0, pipes[1], 0, 10, SPLICE_F_NONBLOCK);
    WALK(splice, 3, offset, pipes[0], 0, fd, 0, 10, SPLICE_F_NONBLOCK);
    WALK(splice, 1, offset, fd, 0, pipes[1], 0, 10, SPLICE_F_NONBLOCK);
    WITHIN(sendmsg, 1, message, message.msg_control, control, fd, 0, 0);
}

static void ask(void)
{
    int fd = ends[0], unbound = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET};
    char name[128];
    socklen_t room = sizeof name;

    WALK(connect, 1, address, fd, 0, 16);
    WALK(connect, 1, address, fd, 0, 15);
    WALK(bind, 1, address, fd, 0, 16);
    WALK(bind, 1, address, unbound, 0, 16);
    WALK(accept, 1, address, listener, 0, (long)&room);
    WALK(accept, 2, room, listener, (long)name, 0);
    WALK(accept4, 1, address, listener, 0, (long)&room, SOCK_NONBLOCK);
    WALK(accept4, 2, room, listener, (long)name, 0, SOCK_NONBLOCK);
    WALK(getsockname, 1, name, fd, 0, (long)&room);
    WALK(getsockname, 2, room, fd, (long)name, 0);
    WALK(getpeername, 1, name, fd, 0, (long)&room);
    WALK(getpeername, 2, room, fd, (long)name, 0);
    close(unbound);
}

static void set(void)
{
    int fd = ends[0], value = 1;
    struct linger linger = {0, 0};
    struct timeval never = {0, 0};
    struct f_owner_ex owner = {F_OWNER_PID, getpid()};
    struct flock lock = {.l_type = F_RDLCK};
    socklen_t four = 4, wide = sizeof linger;
    const int options[] = {SO_ERROR, SO_KEEPALIVE, SO_RCVBUF, SO_SNDBUF, SO_RCVLOWAT, SO_ACCEPTCONN};
    for (int n = 0; n < 6; n++) {
        WALK(getsockopt, 3, value, fd, SOL_SOCKET, options[n], 0, (long)&four);
        WALK(getsockopt, 4, four, fd, SOL_SOCKET, options[n], (long)&value, 0);
        value = 1;
        WALK(setsockopt, 3, value, fd, SOL_SOCKET, options[n], 0, 4);
    }
    WALK(getsockopt, 3, linger, fd, SOL_SOCKET, SO_LINGER, 0, (long)&wide);
    WALK(setsockopt, 3, linger, fd, SOL_SOCKET, SO_LINGER, 0, sizeof linger);
    WALK(setsockopt, 3, never, fd, SOL_SOCKET, SO_RCVTIMEO, 0, sizeof never);
    WALK(getsockopt, 3, value, fd, IPPROTO_TCP, TCP_NODELAY, 0, (long)&four);
    WALK(setsockopt, 3, value, fd, IPPROTO_TCP, TCP_NODELAY, 0, 4);
    WALK(ioctl, 2, value, fd, FIONREAD, 0);
    WALK(ioctl, 2, value, fd, FIONBIO, 0);
    value = 1;
    ioctl(fd, FIONBIO, &value);
    WALK(ioctl, 2, value, fd, TIOCOUTQ, 0);
    WALK(ioctl, 2, value, fd, SIOCATMARK, 0);
    WALK(fcntl, 2, lock, file, F_GETLK, 0);
    WALK(fcntl, 2, lock, file, F_SETLK, 0);
    WALK(fcntl, 2, owner, fd, F_GETOWN_EX, 0);
    WALK(fcntl, 2, owner, fd, F_SETOWN_EX, 0);
    WALK(setsockopt, 3, value, fd, SOL_SOCKET, SO_ZEROCOPY, 0, 2);
}

static void await(void)
{
    int fd = ends[0];
    struct pollfd fds[2] = {{fd, POLLIN, 0}, {ends[1], POLLIN | POLLOUT, 0}};
    struct epoll_event event = {.events = EPOLLIN}, events[16];
    struct timespec soon = {0, 1000};
    struct timeval moment = {0, 1000};
    sigset_t mask;
    fd_set set;
    sigemptyset(&mask);
    FD_ZERO(&set);
    FD_SET(fd, &set);
    struct { sigset_t *mask; size_t size; } both = {&mask, 8};

    WALK(poll, 0, fds, 0, 2, 1);
    WALK(ppoll, 0, fds, 0, 2, (long)&soon, 0, 8);
    WALK(ppoll, 2, soon, (long)fds, 2, 0, 0, 8);
    walk("ppoll mask", SYS_ppoll, ARGUMENTS((long)fds, 2, (long)&soon, 0, 8), 3, &mask, 8);
    for (int at = 1; at < 4; at++) {
        walk("select set", SYS_select, ARGUMENTS(fd + 1, 0, 0, 0, (long)&moment), at, &set, 8);
        walk("pselect set", SYS_pselect6, ARGUMENTS(fd + 1, 0, 0, 0, (long)&soon, 0), at, &set, 8);
    }
    WALK(select, 4, moment, fd + 1, (long)&set, 0, 0, 0);
    FD_SET(fd, &set);
    WALK(pselect6, 4, soon, fd + 1, (long)&set, 0, 0, 0, 0);
    FD_SET(fd, &set);
    WALK(pselect6, 5, both, fd + 1, (long)&set, 0, 0, (long)&soon, 0);
    walk_within("pselect mask", SYS_pselect6, ARGUMENTS(fd + 1, 0, 0, 0, (long)&soon, 0), 5, &both,
                &both.mask, &mask, 8);
    WALK(epoll_ctl, 3, event, epoll, EPOLL_CTL_MOD, fd, 0);
    WALK(epoll_ctl, 3, event, epoll, EPOLL_CTL_ADD, fd, 0);
    WALK(epoll_ctl, 3, event, epoll, EPOLL_CTL_DEL, fd, 0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    WALK(epoll_wait, 1, event, epoll, 0, 1, 1);
    WALK(epoll_wait, 1, events, epoll, 0, 16, 1);
    WALK(epoll_pwait, 1, event, epoll, 0, 1, 1, 0, 8);
    walk("epoll_pwait mask", SYS_epoll_pwait, ARGUMENTS(epoll, (long)events, 16, 1, 0, 8), 4, &mask, 8);
    WALK(epoll_pwait2, 1, event, epoll, 0, 1, (long)&soon, 0, 8);
    WALK(epoll_pwait2, 3, soon, epoll, (long)events, 16, 0, 0, 8);
    walk("epoll_pwait2 mask", SYS_epoll_pwait2, ARGUMENTS(epoll, (long)events, 16, (long)&soon, 0, 8),
         4, &mask, 8);
}

/* The kernel's `struct sigaction`. */
struct action {
    void *handler;
    unsigned long flags;
    void *restorer;
    unsigned long mask;
};

static void ask_about_the_process(void)
{
    struct action action = {SIG_DFL}, old;
    /* No signal has this number: the kernel refuses it when it has read it. */
    unsigned long child[11] = {[4] = 1000};
    char ring[120] = {0};
    void *requests[1] = {0};

    for (int n = 0; n < 3; n++) {
        int signal = ((const int[]){SIGSEGV, SIGBUS, SIGUSR1})[n];
        WALK(rt_sigaction, 1, action, signal, 0, 0, 8);
        WALK(rt_sigaction, 2, old, signal, 0, 0, 8);
        WALK(rt_sigaction, 2, old, signal, (long)&action, 0, 8);
    }
    walk("clone3", SYS_clone3, ARGUMENTS(0, 64), 0, child, 64);
    walk("clone3", SYS_clone3, ARGUMENTS(0, sizeof child), 0, child, sizeof child);
    walk("clone3", SYS_clone3, ARGUMENTS(0, 8), 0, child, 8);
    WALK(io_submit, 2, requests, 0, 1, 0);
    WALK(io_uring_setup, 1, ring, 0, 0);
}

/* The kernel refuses the good ones, too: there is no such operation, and no such mode. */
static void confine(void)
{
    struct sock_filter filter[] = {{ANSWER, 0, 0, ALLOWED}};
    struct sock_fprog program = {1, filter};
    WALK(prctl, 2, program, PR_SET_SECCOMP, 7, 0, 0, 0);
    walk("seccomp", SYS_seccomp, ARGUMENTS(7, 0, 0), 2, &program, sizeof program);
}

/* A string that ends with its page, without a null byte. */
static char *endless(void)
{
    return memcpy(edge - 5, "A=bad", 5);
}

static char *programs[3] = {"/bin/true", "/proc/self/exe", "/nowhere"};

static void execute_one(const char *what, const char *path, char **argv, char **envp)
{
    static const char *const HOW[] = {"execve", "execveat", "vfork", "posix_spawn"};
    long a[6] = {(long)path, (long)argv, (long)envp}, answer;
    long at[6] = {AT_FDCWD, (long)path, (long)argv, (long)envp, 0};
    pid_t child;
    int status;
    for (int door = 0; door < 3; door++) {
        if (enter(door, SYS_execve, a, &answer))
            say(what, HOW[0], DOORS[door], answer);
        else
            continue;
        if (enter(door, SYS_execveat, at, &answer))
            say(what, HOW[1], DOORS[door], answer);
        fflush(stdout);
        if ((child = vfork()) == 0) {
            enter(door, SYS_execve, a, &answer);
            _exit(errno);
        }
        waitpid(child, &status, 0);
        errno = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
        say(what, HOW[2], DOORS[door], -1);
    }
    /* libc itself looks for the end of the arguments. */
    if (envp != environ) {
        errno = posix_spawn(&child, path, 0, 0, argv, envp);
        say(what, HOW[3], "", -1);
    }
}

static void execute(void)
{
    static char *list[1000];
    char *good[] = {"name", 0};
    int count = 0;
    while (environ[count])
        count++;
    memcpy(list, environ, count * sizeof *list);
    for (int n = 0; n < 3; n++) {
        char *path = programs[n];
        printf("%s\n", path);
        for (int kind = 1; kind < 4; kind++) {
            void *bad = place(kind, 0, 0);
            execute_one(KINDS[kind], path, good, bad);
            execute_one(KINDS[kind], path, bad, environ);
            list[count] = bad;
            execute_one("a variable", path, good, list);
            execute_one("an argument", path, list, environ);
        }
        list[count] = endless();
        execute_one("a variable without an end", path, good, list);
        execute_one("an argument without an end", path, list, environ);
        char **last = (char **)edge - count;
        memcpy(last, environ, count * sizeof *last);
        execute_one("variables without an end", path, good, last);
        execute_one("arguments without an end", path, last, environ);
        /* Whole words at odd addresses, up to the middle of one. */
        memcpy((char *)last - 3, environ, count * sizeof *last);
        memset(edge - 3, 0, 3);
        execute_one("half a variable", path, good, (char **)((char *)last - 3));
    }
    for (int kind = 0; kind < 4; kind++)
        execute_one(KINDS[kind], place(kind, 0, 0), good, environ);
    execute_one("a path without an end", endless(), good, environ);
}

/* Each on a connection of its own: some calls take theirs back to the kernel. */
static void (*const GROUPS[])(void) = {await, move_bytes, pass_bytes, ask, set, ask_about_the_process,
                                       execute};
#define GROUPS_COUNT (sizeof GROUPS / sizeof *GROUPS)

static void run(int group)
{
    int found[2];
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    epoll = epoll_create1(0);
    settle(found);
    GROUPS[group]();
    close(epoll);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    char byte;
    setvbuf(stdout, 0, _IOFBF, 1 << 16);
    edge = (char *)mmap(0, 5 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 3 * PAGE;
    read_only = edge + PAGE;
    mprotect(edge, PAGE, PROT_NONE);
    file = open("/proc/self/exe", O_RDONLY);
    if (pipe2(pipes, O_NONBLOCK))
        abort();
    /* Before the process has any connection. */
    printf("Local sockets that nobody serves\n");
    for (int group = 0; group < GROUPS_COUNT; group++) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
            abort();
        run(group);
    }
    const int families[] = {AF_INET, AF_UNIX};
    for (int n = 0; n < 2; n++)
        for (int group = 0; group < GROUPS_COUNT; group++) {
            printf("Family %d\n", families[n]);
            connect_both_of(families[n]);
            fcntl(listener, F_SETFL, O_NONBLOCK);
            warm_up();
            run(group);
            close(listener);
        }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends))
        abort();
    confine();
    printf("all is well\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
