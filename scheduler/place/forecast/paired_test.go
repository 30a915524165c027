// SPDX-License-Identifier: MPL-2.0

package forecast

import "testing"

func TestPartsFitBySubtraction(t *testing.T) {
	amounts := []int32{0, 1, 20, 499, 500, 999, 1000}
	for _, c := range amounts {
		for _, m := range amounts {
			p := NewPart(c, m)
			if p.compute() != c || p.memory() != m {
				t.Fatalf("NewPart(%d, %d) holds %d and %d", c, m, p.compute(), p.memory())
			}
			for _, fc := range amounts {
				for _, fm := range amounts {
					free := NewPart(fc, fm)
					if got, want := p.within(free), c <= fc && m <= fm; got != want {
						t.Errorf("%d and %d within %d and %d: %t, want %t", c, m, fc, fm, got, want)
					}
					if p.within(free) && free-p != NewPart(fc-c, fm-m) {
						t.Errorf("%d and %d less %d and %d are not %d and %d", fc, fm, c, m, fc-c, fm-m)
					}
				}
			}
		}
	}
}

// wants is a demand of tasks with compute and memory, each so often.
func wants(sample int, tasks ...[3]int64) *Demand {
	d := &Demand{}
	d.ForgetPrior(1000)
	for _, t := range tasks {
		compute, memory := int32(t[0]), int32(t[1])
		d.Add(&Shape{
			GPUs: 1, Milli: t[0], Whole: compute == gpuMilli,
			Takes: func(int32) (int32, bool) { return max(compute, memory), true },
			Parts: func(int32) (int32, int32) { return compute, memory },
		}, sample, t[2])
	}
	return d
}

func TestDimensionsCountByHowScarceTheyAre(t *testing.T) {
	s := &Supply{Kinds: []Kind{{Largest: Size{CPU: 1000, Memory: 1000, GPUs: 8}}}}
	for name, c := range map[string]struct {
		d    *Demand
		want both
	}{
		"nothing":                  {&Demand{}, both{}},
		"in proportion":            {wants(Prior, [3]int64{500, 500, 5}, [3]int64{100, 140, 5}), both{}},
		"hardly any apart":         {wants(Prior, [3]int64{500, 500, 96}, [3]int64{100, 500, 4}), both{}},
		"enough apart":             {wants(Prior, [3]int64{500, 500, 95}, [3]int64{100, 500, 5}), both{bothWhole, bothWhole}},
		"as much of both":          {wants(Prior, [3]int64{100, 500, 5}, [3]int64{500, 100, 5}), both{bothWhole, bothWhole}},
		"memory is plenty":         {wants(Prior, [3]int64{800, 400, 1}), both{bothWhole, 0}},
		"compute is plenty":        {wants(Prior, [3]int64{100, 900, 1}), both{0, bothWhole}},
		"memory is half scarce":    {wants(Prior, [3]int64{800, 500, 1}), both{bothWhole, bothWhole / 2}},
		"whole GPUs are not apart": {wants(Prior, [3]int64{1000, 900, 9}), both{}},
		"too few arrived":          {wants(Seen, [3]int64{100, 500, FirstReview - 1}), both{}},
		"enough arrived":           {wants(Seen, [3]int64{100, 500, FirstReview}), both{0, bothWhole}},
	} {
		if got := c.d.dimensions(s); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestFuturesOfTwoDimensions(t *testing.T) {
	b := &both{bothWhole, bothWhole}
	task := func(cpu, compute, memory int32) pairTask {
		p := NewPart(compute, memory)
		return pairTask{cpu, p, b.weigh(p)}
	}
	gpu := func(compute, memory int32) pairFree {
		p := NewPart(compute, memory)
		return pairFree{p, b.weigh(p)}
	}
	never, onlyCPU := task(1, 1000, 1000), pairTask{cpu: 5}
	for name, c := range map[string]struct {
		stream []pairTask
		cpu    int32
		free   []pairFree
		misses int
		want   int64 // milli
	}{
		"nothing comes":                 {nil, 10, []pairFree{gpu(300, 500)}, 3, 800},
		"the first fits":                {[]pairTask{task(1, 300, 100), never}, 10, []pairFree{gpu(300, 500)}, 3, 400},
		"the second fits":               {[]pairTask{never, task(1, 300, 100)}, 10, []pairFree{gpu(300, 500)}, 3, 400},
		"the tighter of two":            {[]pairTask{task(1, 100, 100), task(1, 300, 400)}, 10, []pairFree{gpu(300, 500)}, 3, 100},
		"of two as tight the first":     {[]pairTask{task(1, 300, 100), task(1, 100, 300)}, 1, []pairFree{gpu(300, 500)}, 3, 400},
		"one dimension does not fit":    {[]pairTask{task(1, 100, 600), never}, 10, []pairFree{gpu(300, 500)}, 3, 800},
		"the tightest GPU":              {[]pairTask{task(1, 200, 200), never, task(1, 500, 500), never}, 10, []pairFree{gpu(200, 300), gpu(500, 500)}, 3, 100},
		"CPU-only comes first":          {[]pairTask{onlyCPU, task(1, 300, 500), task(6, 300, 500), never}, 10, []pairFree{gpu(300, 500)}, 3, 800},
		"CPU-only gives way to none":    {[]pairTask{task(1, 300, 500), onlyCPU}, 10, []pairFree{gpu(300, 500)}, 3, 0},
		"too little CPU":                {[]pairTask{task(11, 300, 500), task(12, 300, 500)}, 10, []pairFree{gpu(300, 500)}, 3, 800},
		"patience ends":                 {[]pairTask{never, never, never, never, task(1, 300, 500), never}, 10, []pairFree{gpu(300, 500)}, 2, 800},
		"patience begins again":         {[]pairTask{never, never, task(1, 100, 100), never, never, never, task(1, 200, 400), never}, 10, []pairFree{gpu(300, 500)}, 2, 0},
		"what is left may be no use":    {[]pairTask{task(1, 290, 100), never, task(1, 0, 400), never}, 10, []pairFree{gpu(300, 500)}, 3, 410},
		"two tasks on one GPU":          {[]pairTask{task(1, 100, 300), never, task(1, 200, 100), never}, 10, []pairFree{gpu(300, 500)}, 3, 100},
		"what is left may be the least": {[]pairTask{task(1, 470, 470), never, task(1, 40, 40), never}, 10, []pairFree{gpu(50, 50), gpu(500, 500)}, 3, 80},
		"order is kept after a change":  {[]pairTask{task(1, 400, 400), never, task(1, 100, 100), never}, 10, []pairFree{gpu(450, 450), gpu(500, 500)}, 3, 900},
	} {
		f := &pair{minCPU: 1, least: NewPart(20, 20)}
		if got, _ := f.fill(c.stream, c.cpu, c.free, c.misses); got != c.want*bothWhole {
			t.Errorf("%s: %d milli stay idle, want %d", name, got/bothWhole, c.want)
		}
	}
}

// What a state wastes is learned from tasks that take compute and memory as they are.
func TestWasteOfTwoDimensions(t *testing.T) {
	s := &Supply{Kinds: []Kind{{Largest: Size{CPU: 1000, Memory: 1000, GPUs: 8}}}}
	ws := NewWaste(Precision{Streams: 8, Misses: 30, CPUSteps: 10})
	ws.Learn(s, wants(Prior, [3]int64{500, 500, 1}))
	if ws.Paired() {
		t.Fatal("tasks that want both in proportion are told apart")
	}
	ws.Learn(s, wants(Prior, [3]int64{600, 300, 1}, [3]int64{300, 600, 1}))
	if !ws.Paired() {
		t.Fatal("tasks that want one more than the other are not told apart")
	}
	waste := func(compute, memory int32) int32 {
		part := NewPart(compute, memory)
		key := ws.Key(0, 1000).Plus(KeyOfShare(int32(part)))
		got := ws.EstimateParts(key, 0, 1000, []Part{part})
		if known, ok := ws.Known(key); !ok || known != got {
			t.Errorf("%d and %d: %d is remembered as %d", compute, memory, got, known)
		}
		return got
	}
	for _, c := range []struct{ compute, memory, want int32 }{
		{600, 300, 0}, {300, 600, 0}, {900, 900, 0}, // one of each, or a pair of them
		{299, 1000, 1299}, {1000, 0, 1000}, // nothing fits
		{700, 350, 150}, {310, 660, 70}, // one fits
	} {
		if got := waste(c.compute, c.memory); got != c.want {
			t.Errorf("of %d and %d free %d stay idle, want %d", c.compute, c.memory, got, c.want)
		}
	}
}
