// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/shoenig/test/must"
)

func TestPullGroupSharesOnePull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g pullGroup
		var pulls int
		release := make(chan struct{})
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				image, err := g.do(t.Context(), "a", Pull{}, func(context.Context, *meter) (Image, error) {
					pulls++
					<-release
					return Image{Name: "a"}, nil
				})
				if err != nil || image.Name != "a" {
					t.Errorf("got %v, %v", image.Name, err)
				}
			})
		}
		synctest.Wait()
		close(release)
		wg.Wait()
		if pulls != 1 {
			t.Errorf("%d pulls", pulls)
		}
	})
}

func TestPullEndsWithItsLastWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g pullGroup
		ended := make(chan struct{})
		pull := func(ctx context.Context, _ *meter) (Image, error) {
			<-ctx.Done()
			close(ended)
			return Image{}, ctx.Err()
		}
		first, cancelFirst := context.WithCancel(t.Context())
		second, cancelSecond := context.WithCancel(t.Context())
		for _, ctx := range []context.Context{first, second} {
			go func() {
				if _, err := g.do(ctx, "a", Pull{}, pull); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
			}()
		}
		synctest.Wait()
		cancelFirst()
		synctest.Wait()
		select {
		case <-ended:
			t.Fatal("the pull ended although a caller still waits")
		default:
		}
		cancelSecond()
		<-ended
	})
}

// TestAPullThatWasLeftIsNotJoined: it is ending, and the next caller wants an image.
func TestAPullThatWasLeftIsNotJoined(t *testing.T) {
	var g pullGroup
	release := make(chan struct{})
	join := func() *flight {
		return g.join("a", func(context.Context, *meter) (Image, error) { <-release; return Image{}, nil })
	}
	left := join()
	must.True(t, left == join())
	g.leave("a", left)
	g.leave("a", left)
	next := join()
	must.True(t, left != next)
	close(release)
	<-left.done
	<-next.done
	last := join()
	must.True(t, last != next, must.Sprint("what has ended is not joined either"))
	<-last.done
}

// TestOneOfTwoPullsEndsAlone: the one that was left does not take away the other.
func TestOneOfTwoPullsEndsAlone(t *testing.T) {
	var g pullGroup
	ends := make(chan struct{})
	left := g.join("a", func(context.Context, *meter) (Image, error) { <-ends; return Image{}, nil })
	g.leave("a", left)
	goesOn := make(chan struct{})
	next := g.join("a", func(context.Context, *meter) (Image, error) { <-goesOn; return Image{}, nil })
	close(ends)
	<-left.done
	must.True(t, next == g.join("a", nil))
	close(goesOn)
	<-next.done
}

func TestMeterSaysHowLongNothingCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m meter
		time.Sleep(time.Minute) // the bubble's clock
		must.Zero(t, m.idle())
		m.wait(1)
		for range 5 {
			time.Sleep(9 * time.Second)
			must.Eq(t, 9*time.Second, m.idle())
			m.add(64 << 10)
			must.Zero(t, m.idle())
		}
		time.Sleep(9 * time.Second)
		m.add(64<<10 - 1)
		time.Sleep(2 * time.Second)
		must.Eq(t, 11*time.Second, m.idle())
		m.add(1)
		must.Zero(t, m.idle())
		time.Sleep(time.Second)
		m.wait(-1)
		time.Sleep(time.Second)
		must.Zero(t, m.idle())
	})
}

// together calls do often and from many sides: what it shares without a lock goes wrong.
func together(do func(worker, n int)) {
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for n := range 5000 {
				do(worker, n)
			}
		})
	}
	wg.Wait()
}

// Each pull is over when the last that wanted it has gone, and is then forgotten.
func TestPullsAreSharedByMany(t *testing.T) {
	var g pullGroup
	var mu sync.Mutex
	var pulls []context.Context
	together(func(worker, n int) {
		key := fmt.Sprint(n % 2)
		image, err := g.do(t.Context(), key, Pull{}, func(ctx context.Context, _ *meter) (Image, error) {
			mu.Lock()
			pulls = append(pulls, ctx)
			mu.Unlock()
			runtime.Gosched()
			return Image{Name: key}, nil
		})
		if err != nil || image.Name != key {
			t.Errorf("pulling %q gives %q, %v", key, image.Name, err)
		}
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	must.MapEmpty(t, g.flight)
	for _, ctx := range pulls {
		must.ErrorIs(t, ctx.Err(), context.Canceled)
	}
}

func TestRequestsAreCountedByMany(t *testing.T) {
	m := &meter{}
	together(func(worker, n int) {
		m.wait(1)
		m.add(1)
		m.wait(-1)
	})
	together(func(worker, n int) { m.add(1) })
	must.Eq(t, 8*5000, m.recent)
	m.mu.Lock() // what counts waits
	counted := make(chan struct{})
	go func() {
		m.add(1)
		close(counted)
	}()
	for m.received.Load() == 2*8*5000 {
		runtime.Gosched()
	}
	for range 1000 {
		runtime.Gosched()
	}
	must.Eq(t, 8*5000, m.recent)
	m.mu.Unlock()
	<-counted
	must.Eq(t, 8*5000+1, m.recent)
	must.Eq(t, 0, m.waiting)
	must.Zero(t, m.idle())
	must.Eq(t, 2*8*5000+1, m.received.Load())
}

func TestWhatARegistrySentIsNotedByMany(t *testing.T) {
	r := newProvingResolver(nil, "host")
	store := labeled{labels: map[string]string{registryLabel + "host": "true"}}
	sent := digest.FromString("0 0")
	r.sent[sent] = true
	together(func(worker, n int) {
		if err := r.proveBlob(t.Context(), store, sent); err != nil {
			t.Error(err)
		}
		text := fmt.Sprint(worker, n%100)
		body := r.noting(io.NopCloser(strings.NewReader(text)), digest.FromString(text))
		_, _ = io.Copy(io.Discard, body)
		lie := r.noting(io.NopCloser(strings.NewReader("lie")), digest.FromString(text+"?"))
		_, _ = io.Copy(io.Discard, lie)
	})
	must.MapLen(t, 800, r.sent)
}

type closer struct {
	io.Reader
	err error
}

func (c closer) Close() error { return c.err }

// TestAnAnswerIsClosedOnce for the meter, and each time for whoever sent it.
func TestAnAnswerIsClosedOnce(t *testing.T) {
	failed := errors.New("failed")
	m := &meter{}
	m.wait(2)
	body := &meteredBody{ReadCloser: closer{strings.NewReader("x"), failed}, meter: m}
	for range 2 {
		must.ErrorIs(t, body.Close(), failed)
	}
	must.Eq(t, 1, m.waiting)
	_, err := io.ReadAll(&meteredBody{ReadCloser: closer{strings.NewReader("xy"), nil}, meter: m})
	must.NoError(t, err)
	must.Eq(t, 0, m.waiting)
	must.Eq(t, 2, m.received.Load())
}
