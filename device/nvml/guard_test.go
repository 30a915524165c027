package nvml

import (
	"errors"
	"sync"
	"testing"
	"time"
)

// Two calls that hang together must both come back before a third is begun.
func TestGuardStaysShutWhileAnyCallHangs(t *testing.T) {
	g := &guard{timeout: time.Millisecond, stuck: map[string]int{}}
	var begun, ended sync.WaitGroup
	var release [2]chan struct{}
	for i := range release {
		release[i] = make(chan struct{})
		begun.Add(1)
		ended.Go(func() {
			_, err := call(g, "GPU-1", func() int { begun.Done(); <-release[i]; return i })
			if !errors.Is(err, errHangs) {
				t.Errorf("call %d answers %v", i, err)
			}
		})
	}
	begun.Wait()
	ended.Wait()
	if _, err := call(g, "GPU-2", func() int { return 0 }); err != nil {
		t.Errorf("another GPU is blocked too: %v", err)
	}
	close(release[0])
	for !hangsTimes(g, "GPU-1", 1) {
		time.Sleep(time.Millisecond)
	}
	if _, err := call(g, "GPU-1", func() int { return 0 }); !errors.Is(err, errHangs) {
		t.Errorf("a call was begun beside one that hangs: %v", err)
	}
	close(release[1])
	for g.hangs("GPU-1") {
		time.Sleep(time.Millisecond)
	}
}

func hangsTimes(g *guard, key string, count int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stuck[key] == count
}
