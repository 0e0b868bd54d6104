/* Registers the ends of a connection with epoll by requests of io_uring, as libuv does, and talks
 * over it: both ends wait by epoll_wait. Says what the requests answered and what arrived, and waits
 * for the end of its input. With an argument a request makes the connection, too. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int ring;
static unsigned char *queue;
static struct io_uring_sqe *requests;
static struct io_uring_params parameters;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static unsigned *word(unsigned at)
{
    return (unsigned *)(queue + at);
}

static void begin(void)
{
    ring = syscall(SYS_io_uring_setup, 8, &parameters);
    if (ring < 0)
        fail("io_uring_setup");
    size_t bytes = parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe);
    int both = PROT_READ | PROT_WRITE;
    queue = mmap(0, bytes, both, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    requests = mmap(0, 8 * sizeof *requests, both, MAP_SHARED, ring, IORING_OFF_SQES);
    if (queue == MAP_FAILED || requests == MAP_FAILED)
        fail("mmap");
}

static struct io_uring_sqe *request(int operation, int fd)
{
    unsigned *tail = word(parameters.sq_off.tail), place = *tail % 8;
    struct io_uring_sqe *entry = &requests[place];
    memset(entry, 0, sizeof *entry);
    entry->opcode = operation;
    entry->fd = fd;
    entry->user_data = place;
    word(parameters.sq_off.array)[place] = place;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    return entry;
}

static void registration(int epoll, int operation, int fd, struct epoll_event *event)
{
    struct io_uring_sqe *entry = request(IORING_OP_EPOLL_CTL, epoll);
    entry->off = fd;
    entry->len = operation;
    entry->addr = (unsigned long)event;
}

/* Hands all requests over, and says their results in the order of the requests: the kernel's worker
 * threads may complete them in another order. */
static void hand_over(unsigned count)
{
    unsigned first = *word(parameters.sq_off.tail) - count;
    int results[8];
    if (syscall(SYS_io_uring_enter, ring, count, count, IORING_ENTER_GETEVENTS, 0, 0) != count)
        fail("io_uring_enter");
    for (unsigned n = 0; n < count; n++) {
        unsigned *head = word(parameters.cq_off.head);
        struct io_uring_cqe *all = (void *)(queue + parameters.cq_off.cqes);
        struct io_uring_cqe *one = &all[*head & *word(parameters.cq_off.ring_mask)];
        results[one->user_data] = one->res;
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    }
    for (unsigned n = 0; n < count; n++)
        printf("%d ", results[(first + n) % 8]);
}

/* Connects, and says the result. */
static void connect_by_request(int fd, struct sockaddr_in *address)
{
    struct io_uring_sqe *entry = request(IORING_OP_CONNECT, fd);
    entry->addr = (unsigned long)address;
    entry->off = sizeof *address;
    hand_over(1);
}

int main(int count, char **arguments)
{
    (void)arguments;
    struct sockaddr_in address = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&address, length) || listen(listener, 1) ||
        getsockname(listener, (void *)&address, &length))
        fail("listen");
    begin();
    if (count > 1)
        connect_by_request(client, &address);
    else if (connect(client, (void *)&address, length))
        fail("connect");
    int server = accept4(listener, 0, 0, SOCK_NONBLOCK), epoll = epoll_create1(0);
    struct epoll_event of_client = {EPOLLIN, {.u64 = 1}}, of_server = {EPOLLIN, {.u64 = 2}};
    struct epoll_event nothing = {0, {0}};
    registration(epoll, EPOLL_CTL_ADD, client, &of_client);
    registration(epoll, EPOLL_CTL_ADD, server, &nothing);
    registration(epoll, EPOLL_CTL_ADD, server, &of_server);
    registration(epoll, EPOLL_CTL_MOD, server, &of_server);
    registration(epoll, EPOLL_CTL_DEL, listener, &nothing);
    registration(epoll, EPOLL_CTL_ADD, -1, &nothing);
    hand_over(6);
    char byte = 0;
    unsigned long sum = 0;
    int ends[] = {0, client, server};
    if (write(client, &byte, 1) != 1)
        fail("write");
    for (int n = 0; n < 20000; n++) {
        struct epoll_event event;
        if (epoll_wait(epoll, &event, 1, 10000) != 1)
            fail("epoll_wait");
        int fd = ends[event.data.u64];
        if (read(fd, &byte, 1) != 1)
            fail("read");
        sum = sum * 31 + byte * 3 + event.data.u64;
        byte++;
        if (write(fd, &byte, 1) != 1)
            fail("write");
    }
    printf("sum %lx\n", sum);
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    /* Behind another request the kernel registers by itself. */
    request(IORING_OP_FSYNC, listener);
    registration(epoll, EPOLL_CTL_DEL, client, &nothing);
    registration(epoll, EPOLL_CTL_ADD, client, &of_client);
    hand_over(3);
    struct epoll_event event;
    int events = epoll_wait(epoll, &event, 1, 10000);
    printf("%d %lu\n", events, (unsigned long)event.data.u64);
    return 0;
}
