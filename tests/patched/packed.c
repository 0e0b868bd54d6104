/* A packer's stub: maps the static program that its first argument names at that program's
 * addresses, from memory without a file, and becomes it. */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { PAGE = 4096 };

static char *contents(const char *path)
{
    struct stat status;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &status))
        exit(1);
    char *file = mmap(0, status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    return file == MAP_FAILED ? exit(1), file : file;
}

static void unpack(const Elf64_Phdr *one, const char *file)
{
    unsigned long from = one->p_vaddr & -PAGE, end = one->p_vaddr + one->p_memsz;
    int flags = MAP_FIXED_NOREPLACE | MAP_PRIVATE | MAP_ANONYMOUS;
    void *place = mmap((void *)from, end - from, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (place != (void *)from)
        exit(2);
    memcpy((void *)one->p_vaddr, file + one->p_offset, one->p_filesz);
    mprotect(place, end - from,
             (one->p_flags & PF_R ? PROT_READ : 0) | (one->p_flags & PF_W ? PROT_WRITE : 0) |
                 (one->p_flags & PF_X ? PROT_EXEC : 0));
}

int main(int count, char **arguments, char **environment)
{
    const char *file = contents(arguments[1]);
    const Elf64_Ehdr *header = (const void *)file;
    const Elf64_Phdr *segments = (const void *)(file + header->e_phoff);
    unsigned long headers = 0;
    for (int n = 0; n < header->e_phnum; n++) {
        if (segments[n].p_type != PT_LOAD)
            continue;
        unpack(&segments[n], file);
        if (segments[n].p_offset == 0)
            headers = segments[n].p_vaddr + header->e_phoff;
    }
    /* The program's stack begins at its own name, with the count before it. */
    unsigned long *stack = (unsigned long *)arguments;
    stack[0] = count - 1;
    unsigned long *auxiliary = (unsigned long *)environment;
    while (*auxiliary++)
        ;
    for (; auxiliary[0] != AT_NULL; auxiliary += 2) {
        if (auxiliary[0] == AT_PHDR)
            auxiliary[1] = headers;
        if (auxiliary[0] == AT_PHNUM)
            auxiliary[1] = header->e_phnum;
        if (auxiliary[0] == AT_ENTRY)
            auxiliary[1] = header->e_entry;
    }
    if ((unsigned long)stack % 16) {
        memmove(stack - 1, stack, (char *)(auxiliary + 2) - (char *)stack);
        stack--;
    }
    __asm__ volatile("mov %0, %%rsp\n\txor %%edx, %%edx\n\tjmp *%1"
                     :
                     : "r"(stack), "r"(header->e_entry));
    return 3;
}
