// SPDX-License-Identifier: MPL-2.0

package cuda

// Threads is how many threads a block of the kernel has.
const Threads = 256

// ptx is a kernel that multiplies and adds for as many rounds as it is told and
// writes one word per thread. It is for every GPU since Maxwell; the driver
// compiles it for the one that is there, and cannot leave the work out:
//
//	x = thread; repeat rounds times: x = x*x + 3
const ptx = `
.version 4.0
.target sm_50
.address_size 64

.visible .entry work(.param .u64 out, .param .u32 rounds)
{
	.reg .pred %p<2>;
	.reg .b32 %r<8>;
	.reg .b64 %rd<4>;

	ld.param.u64 %rd1, [out];
	ld.param.u32 %r1, [rounds];
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mov.u32 %r4, %tid.x;
	mad.lo.s32 %r5, %r2, %r3, %r4;
	mov.u32 %r6, %r5;
	mov.u32 %r7, 0;
LOOP:
	setp.ge.u32 %p1, %r7, %r1;
	@%p1 bra DONE;
	mad.lo.s32 %r6, %r6, %r6, 3;
	add.u32 %r7, %r7, 1;
	bra LOOP;
DONE:
	cvta.to.global.u64 %rd2, %rd1;
	mul.wide.u32 %rd3, %r5, 4;
	add.s64 %rd2, %rd2, %rd3;
	st.global.u32 [%rd2], %r6;
	ret;
}
`

// expected is what the kernel computes for one thread.
func expected(thread, rounds uint32) uint32 {
	x := thread
	for range rounds {
		x = x*x + 3
	}
	return x
}
