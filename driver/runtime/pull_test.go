package runtime

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestPullGroupSharesOnePull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g pullGroup
		var pulls int
		release := make(chan struct{})
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				image, err := g.do(t.Context(), "a", func(context.Context) (Image, error) {
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
		pull := func(ctx context.Context) (Image, error) {
			<-ctx.Done()
			close(ended)
			return Image{}, ctx.Err()
		}
		first, cancelFirst := context.WithCancel(t.Context())
		second, cancelSecond := context.WithCancel(t.Context())
		for _, ctx := range []context.Context{first, second} {
			go func() {
				if _, err := g.do(ctx, "a", pull); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
			}()
		}
		synctest.Wait()
		cancelFirst()
		synctest.Wait()
		select {
		case <-ended:
			t.Fatal("the pull ended although somebody still waits")
		default:
		}
		cancelSecond()
		<-ended
	})
}

func TestMeterEndsAnIdlePull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		m := newMeter(Pull{IdleTimeout: 10 * time.Second}, cancel)
		defer m.stop()
		time.Sleep(time.Minute) // the bubble's clock
		m.wait(1)
		for range 5 {
			time.Sleep(9 * time.Second)
			m.add(leastProgress)
		}
		if ctx.Err() != nil {
			t.Fatal("a pull that moves was ended")
		}
		time.Sleep(9 * time.Second)
		m.add(leastProgress - 1)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !errors.Is(context.Cause(ctx), ErrPullIdle) {
			t.Errorf("cause is %v", context.Cause(ctx))
		}
	})
}
