/* Of linux/filter.h and linux/seccomp.h, which musl has not. */
struct sock_filter {
    unsigned short code;
    unsigned char jt, jf;
    unsigned k;
};
struct sock_fprog {
    unsigned short length;
    struct sock_filter *filter;
};
enum { LOAD_WORD = 0x20, JUMP_EQUAL = 0x15, ANSWER = 0x06 };
#define SECCOMP_MODE_FILTER 2
#define KILL_PROCESS 0x80000000u
#define REFUSED 0x00050000u
#define ALLOWED 0x7fff0000u
