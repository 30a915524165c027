package nomad

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// noted is a sink that writes down what it gets, and when.
type noted struct {
	begun time.Time
	lines []string
}

func (n *noted) note(format string, args ...any) {
	n.lines = append(n.lines, fmt.Sprintf("%gs ", time.Since(n.begun).Seconds())+fmt.Sprintf(format, args...))
}

func (n *noted) Apply(changes []Change, index uint64) { n.note("%v at %d", kinds(changes), index) }

// pause waits, and reports whether the stream is still read then.
func pause(ctx context.Context, long time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(long):
		return true
	}
}

// watch follows a Nomad whose event stream is fed so, for so long, and returns what happened.
func watch(t *testing.T, long time.Duration, answer func(r *http.Request) (int, any), feed func(ctx context.Context, w io.Writer)) []string {
	n := &noted{begun: time.Now()}
	m := &inMemory{}
	m.answer = func(r *http.Request) (int, any) {
		if !strings.HasPrefix(r.URL.Path, "/v1/event/") {
			return answer(r)
		}
		n.note("stream of %s", r.URL.RawQuery)
		reader, writer := line(r)
		go feed(r.Context(), writer)
		return http.StatusOK, reader
	}
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	w := &Watcher{Client: NewClient(m.client(t)), Mirror: NewMirror(Hardware{}), Sink: n, Heard: func() { n.note("heard") }, Lost: func(err error) { n.note("lost: %v", err) }}
	w.Run(ctx)
	n.note("over")
	synctest.Wait()
	if open := m.notClosed(); len(open) > 0 {
		t.Errorf("%q stay open", open)
	}
	for _, r := range m.asked {
		if strings.HasPrefix(r.URL.Path, "/v1/event/") && r.Context().Err() == nil {
			t.Error("a stream that is not read any more is still asked for")
		}
	}
	return n.lines
}

const opened = "stream of namespace=%2A&topic=Node&topic=Allocation&topic=Job&topic=Evaluation"

func compare(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// everything is what stocked has.
const everything = "map[alloc:2 blocked:1 job:1 node:1 past:2] at 10"

// TestAStreamThatSaysNothingIsOpenedAnew: after 45 seconds, with a second between, and what is
// read again is nothing new.
func TestAStreamThatSaysNothingIsOpenedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := watch(t, 50*time.Second, stocked, func(context.Context, io.Writer) {})
		compare(t, got, []string{
			"0s " + opened, "0s " + everything, "0s heard", "45s lost: event stream is silent",
			"46s " + opened, "46s map[blocked:1] at 10", "46s heard", "50s over",
		})
	})
}

// TestListsThatHangAreGivenUp as a stream is that says nothing.
func TestListsThatHangAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := watch(t, 45*time.Second+time.Millisecond, hang, func(context.Context, io.Writer) {})
		if len(got) != 3 || !strings.HasPrefix(got[1], "45s lost: list ") || got[2] != "45.001s over" {
			t.Errorf("got\n%s", strings.Join(got, "\n"))
		}
	})
}

// TestListsAreReadAgainAlthoughTheStreamIsWell: every five minutes, at once, and nothing is lost.
func TestListsAreReadAgainAlthoughTheStreamIsWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := watch(t, 301*time.Second, stocked, func(ctx context.Context, w io.Writer) {
			for i := 0; i < 9 && pause(ctx, 30*time.Second); i++ {
				_, _ = io.WriteString(w, "{}\n")
			}
		})
		want := []string{"0s " + opened, "0s " + everything, "0s heard"}
		for i := range 9 {
			want = append(want, fmt.Sprintf("%ds heard", 30*(i+1)))
		}
		compare(t, got, append(want, "300s "+opened, "300s map[blocked:1] at 10", "300s heard", "301s over"))
	})
}

// nodeEvent is of a node as it is at an index.
func nodeEvent(id string, index int) string {
	return fmt.Sprintf(`{"Topic":"Node","Index":%d,"Key":%q,"Payload":{"Node":{"ID":%q,"ModifyIndex":%d}}}`, index, id, id, index)
}

// TestEventsAreAppliedByFrames, each with its index. One that cannot be read ends the round; what
// stood before it is applied, since it would not be told again.
func TestEventsAreAppliedByFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := watch(t, 4500*time.Millisecond, stocked, func(ctx context.Context, w io.Writer) {
			if !pause(ctx, time.Second) {
				return
			}
			_, _ = fmt.Fprintf(w, `{"Index":11,"Events":[%s,%s]}`+"\n", nodeEvent("n2", 11), nodeEvent("n3", 11))
			_, _ = fmt.Fprintf(w, `{"Index":12,"Events":[%s]}`+"\n", nodeEvent("n2", 11)) // no news
			_, _ = fmt.Fprintf(w, `{"Index":13,"Events":[%s,{"Topic":"Job","Type":"JobRegistered","Index":13,"Key":"j","Payload":7}]}`+"\n", nodeEvent("n4", 13))
		})
		want := []string{"0s " + opened, "0s " + everything, "0s heard", "1s map[node:2] at 11", "1s heard", "1s heard", "1s map[node:1] at 0"}
		if len(got) < 8 || !strings.HasPrefix(got[7], `1s lost: decode event JobRegistered of Job "j": `) {
			t.Fatalf("got\n%s", strings.Join(got, "\n"))
		}
		compare(t, append(got[:7:7], got[8:11]...), append(want, "2s "+opened, "2s map[blocked:1 node gone:3] at 10", "2s heard"))
		compare(t, got[len(got)-1:], []string{"4.5s over"})
	})
}

// TestWhatIsReadBeforeAFailureIsKept: Nomad was restored from a snapshot, and the second reading,
// which that takes, fails.
func TestWhatIsReadBeforeAFailureIsKept(t *testing.T) {
	reads := 0
	m := &inMemory{answer: func(r *http.Request) (int, any) {
		if r.URL.Path == "/v1/nodes" {
			if reads++; reads == 2 {
				return http.StatusInternalServerError, "no leader"
			}
		}
		return stocked(r)
	}}
	n := &noted{begun: time.Now()}
	w := &Watcher{Client: NewClient(m.client(t)), Mirror: NewMirror(Hardware{}), Sink: n}
	w.Mirror.at = listed{1, 1, 11, 1}
	err := w.round(t.Context())
	if err == nil || len(n.lines) != 1 || !strings.HasSuffix(n.lines[0], "map[alloc:2 blocked:1 job:1 node:1] at 0") {
		t.Errorf("got %q, %v", n.lines, err)
	}
}
