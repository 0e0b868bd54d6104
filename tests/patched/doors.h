/* The ways by which a program makes a system call. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static long past_libc(long number, const long *a)
{
    register long d asm("r10") = a[3], e asm("r8") = a[4], f asm("r9") = a[5];
    long answer;
    asm volatile("syscall"
                 : "=a"(answer)
                 : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(d), "r"(e), "r"(f)
                 : "rcx", "r11", "memory");
    if (answer >= 0 || answer < -4095)
        return answer;
    errno = -answer;
    return -1;
}

#ifdef __GLIBC__
/* Declared by nobody. */
extern ssize_t __read(int, void *, size_t), __write(int, const void *, size_t);
extern ssize_t __send(int, const void *, size_t, int);
extern int __connect(int, const struct sockaddr *, socklen_t);

/* By name, where libc itself looks at no pointer. */
static int by_name(long number, const long *a, long *answer)
{
#define P(n) ((void *)a[n])
#define CASE(name, call) \
    case SYS_##name: \
        *answer = call; \
        return 1;
    switch (number) {
        CASE(read, (a[2] & 1) ? __read(a[0], P(1), a[2]) : read(a[0], P(1), a[2]))
        CASE(write, (a[2] & 1) ? __write(a[0], P(1), a[2]) : write(a[0], P(1), a[2]))
        CASE(readv, readv(a[0], P(1), a[2]))
        CASE(writev, writev(a[0], P(1), a[2]))
        CASE(preadv2, preadv2(a[0], P(1), a[2], a[3], a[5]))
        CASE(pwritev2, pwritev2(a[0], P(1), a[2], a[3], a[5]))
        CASE(recvfrom, a[4] || a[5] ? recvfrom(a[0], P(1), a[2], a[3], P(4), P(5))
                                    : recv(a[0], P(1), a[2], a[3]))
        CASE(sendto, a[4]         ? sendto(a[0], P(1), a[2], a[3], P(4), a[5])
                     : (a[2] & 1) ? __send(a[0], P(1), a[2], a[3])
                                  : send(a[0], P(1), a[2], a[3]))
        CASE(recvmsg, recvmsg(a[0], P(1), a[2]))
        CASE(sendmsg, sendmsg(a[0], P(1), a[2]))
        CASE(sendmmsg, sendmmsg(a[0], P(1), a[2], a[3]))
        CASE(recvmmsg, recvmmsg(a[0], P(1), a[2], a[3], P(4)))
        CASE(connect, (a[2] & 1) ? __connect(a[0], P(1), a[2]) : connect(a[0], P(1), a[2]))
        CASE(bind, bind(a[0], P(1), a[2]))
        CASE(accept, accept(a[0], P(1), P(2)))
        CASE(accept4, accept4(a[0], P(1), P(2), a[3]))
        CASE(getsockname, getsockname(a[0], P(1), P(2)))
        CASE(getpeername, getpeername(a[0], P(1), P(2)))
        CASE(getsockopt, getsockopt(a[0], a[1], a[2], P(3), P(4)))
        CASE(setsockopt, setsockopt(a[0], a[1], a[2], P(3), a[4]))
        CASE(ioctl, ioctl(a[0], a[1], a[2]))
        CASE(poll, poll(P(0), a[1], a[2]))
        CASE(epoll_ctl, epoll_ctl(a[0], a[1], a[2], P(3)))
        CASE(epoll_wait, epoll_wait(a[0], P(1), a[2], a[3]))
        CASE(epoll_pwait, epoll_pwait(a[0], P(1), a[2], a[3], P(4)))
        CASE(sendfile, sendfile(a[0], a[1], P(2), a[3]))
        CASE(splice, splice(a[0], P(1), a[2], P(3), a[4], a[5]))
        CASE(execve, execve(P(0), P(1), P(2)))
    }
    return 0;
}
#else
static int by_name(long number, const long *a, long *answer)
{
    return 0;
}
#endif

static const char *const DOORS[] = {"by number", "by name", "past libc"};

/* False where there is no such door. */
static int enter(int door, long number, const long *a, long *answer)
{
    errno = 0;
    if (door == 1)
        return by_name(number, a, answer);
#ifndef PAST_LIBC
    if (door == 2)
        return 0;
#endif
    *answer = door == 2 ? past_libc(number, a) : syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    return 1;
}
