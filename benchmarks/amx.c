/* Lets oneDNN use AMX in virtual machines that pass the matrix unit through but end their list of CPUID leaves before
 * the two that describe it (0x1D and 0x1E). There oneDNN reads a tile size of zero and fails or crashes, although the
 * instructions work.
 *
 *   cc -O2 -shared -fPIC -o amx.so benchmarks/amx.c && LD_PRELOAD=$PWD/amx.so make bench
 *
 * Linux on x86-64, where /proc/cpuinfo says amx_tile and cpuid_fault. CPUID is made to trap, and the answer to these
 * leaves is that of every processor with AMX so far: eight tiles of 16 rows of 64 bytes. Nothing else is changed.
 */

#define _GNU_SOURCE
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012, LAST = 0x1e };

static struct sigaction before;

static long traps(int on) { return syscall(SYS_arch_prctl, ARCH_SET_CPUID, !on); }

static void answer(unsigned leaf, unsigned sub, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
  traps(0);
  __asm__ volatile("cpuid" : "=a"(*a), "=b"(*b), "=c"(*c), "=d"(*d) : "a"(leaf), "c"(sub));
  traps(1);
  if (leaf == 0 && *a < LAST) *a = LAST;
  if (leaf != 0x1d && leaf != 0x1e) return;
  *a = *b = *c = *d = 0;
  if (leaf == 0x1d && sub == 0) *a = 1;                                             /* one palette */
  if (leaf == 0x1d && sub == 1) *a = 1024 << 16 | 8192, *b = 8 << 16 | 64, *c = 16; /* its tiles */
  if (leaf == 0x1e && sub == 0) *b = 64 << 8 | 16;                                  /* the largest product */
}

static void handle(int number, siginfo_t *info, void *context) {
  greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
  const unsigned char *code = (const unsigned char *)r[REG_RIP];
  if (info->si_code != SI_KERNEL || code[0] != 0x0f || code[1] != 0xa2) { /* not a CPUID: a real fault */
    sigaction(number, &before, 0);
    return;
  }
  unsigned a, b, c, d;
  answer((unsigned)r[REG_RAX], (unsigned)r[REG_RCX], &a, &b, &c, &d);
  r[REG_RAX] = a, r[REG_RBX] = b, r[REG_RCX] = c, r[REG_RDX] = d, r[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
  struct sigaction on = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGSEGV, &on, &before);
  traps(1);
}
