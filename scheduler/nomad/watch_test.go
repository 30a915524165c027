// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
)

// noted is a sink that writes down what it gets, and when. What comes in pages, it takes together.
type noted struct {
	begun time.Time
	lines []string
	pages []Change
}

func (n *noted) note(format string, args ...any) {
	if len(n.pages) > 0 {
		n.flush(0)
	}
	n.lines = append(n.lines, fmt.Sprintf("%gs ", time.Since(n.begun).Seconds())+fmt.Sprintf(format, args...))
}

func (n *noted) Apply(changes []Change, index uint64) {
	if n.pages = append(n.pages, changes...); index > 0 {
		n.flush(index)
	}
}

func (n *noted) flush(index uint64) {
	changes := n.pages
	n.pages = nil
	n.note("%v at %d", kinds(changes), index)
}

// impatient is the writing end of an event stream, which Nomad closes when it is not read for 40
// seconds.
type impatient struct {
	*io.PipeWriter
}

func (w impatient) Write(text []byte) (int, error) {
	late := time.AfterFunc(40*time.Second, func() { w.CloseWithError(io.ErrUnexpectedEOF) })
	defer late.Stop()
	return w.PipeWriter.Write(text)
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
		go feed(r.Context(), impatient{writer})
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

// heartbeats are all that a stream says, for good.
func heartbeats(ctx context.Context, w io.Writer) {
	for pause(ctx, 30*time.Second) {
		if _, err := io.WriteString(w, "{}\n"); err != nil {
			return
		}
	}
}

// without are lines that do not say so.
func without(lines []string, what string) []string {
	return slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, what) })
}

// TestListsThatTakeLongAreRead, however long that is, as long as something comes of them. What the event stream
// tells meanwhile is taken in, and Nomad does not close it.
func TestListsThatTakeLongAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		jobs := make([]api.JobListStub, 400)
		for i := range jobs {
			jobs[i] = api.JobListStub{ID: fmt.Sprint(i), Namespace: "n", JobModifyIndex: 5}
		}
		slow := func(r *http.Request) (int, any) {
			switch id, one := strings.CutPrefix(r.URL.Path, "/v1/job/"); {
			case r.URL.Path == "/v1/jobs":
				return http.StatusOK, jobs
			case one:
				pause(r.Context(), 7*time.Second) // 16 at once: 175 seconds
				return http.StatusOK, fmt.Sprintf(`{"ID":%q,"Namespace":"n","JobModifyIndex":5}`, id)
			}
			return stocked(r)
		}
		got := watch(t, 200*time.Second, slow, func(ctx context.Context, w io.Writer) {
			if pause(ctx, time.Second) {
				_, _ = fmt.Fprintf(w, `{"Index":11,"Events":[%s]}`+"\n", nodeEvent("n2", 11))
			}
			heartbeats(ctx, w)
		})
		if want := "70s lost: its lists are being read: 2 nodes, "; !slices.ContainsFunc(got, func(line string) bool {
			return strings.HasPrefix(line, want) && strings.HasSuffix(line, " jobs, 2 allocations so far")
		}) {
			t.Errorf("no line begins with %q:\n%s", want, strings.Join(got, "\n"))
		}
		got = without(without(got, "so far"), " at 0")
		compare(t, got, []string{"0s " + opened, "175s map[job:16 past:2] at 10", "175s heard", "181s heard", "200s over"})
	})
}

// TestANamespaceThatIsMadeLaterIsFollowed within two seconds: with another event stream, since none covers
// it. The one before is read on until the lists were read, whatever they take.
func TestANamespaceThatIsMadeLaterIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var streams atomic.Int32
		answer := func(r *http.Request) (int, any) {
			late := time.Since(begun) >= 10500*time.Millisecond
			switch {
			case r.URL.Path == "/v1/namespaces" && r.URL.Query().Has("stale") && late:
				return http.StatusOK, []api.Namespace{{Name: "default"}, {Name: "late"}}
			case r.URL.Path == "/v1/namespaces" && time.Since(begun) > 5*time.Second && !late:
				return http.StatusInternalServerError, "no leader"
			case r.URL.Path == "/v1/evaluations" && late:
				if pause(r.Context(), 100*time.Second); r.Context().Err() != nil {
					return 0, r.Context().Err()
				}
			}
			return stocked(r)
		}
		got := watch(t, 400*time.Second, answer, func(ctx context.Context, w io.Writer) {
			if second := streams.Add(1) == 2; second && pause(ctx, time.Second) {
				_, _ = fmt.Fprintf(w, `{"Index":11,"Events":[%s]}`+"\n", nodeEvent("n2", 11))
			}
			heartbeats(ctx, w)
		})
		want := []string{"0s " + opened, "0s " + everything, "0s heard", "11.5s " + opened, "30s map[node:1] at 0", "30s heard"}
		compare(t, got[:min(len(got), len(want))], want)
		last, opened := 0.0, 0
		for _, line := range got { // until its lists come, the first stream is heard
			var at float64
			if _, err := fmt.Sscanf(line, "%gs heard", &at); err == nil && strings.HasSuffix(line, "heard") {
				if at-last > 31 {
					t.Errorf("nothing is heard from %gs until %gs", last, at)
				}
				last = at
			}
			if strings.Contains(line, "stream of") {
				opened++
			}
		}
		if last < 380 || opened != 4 {
			t.Errorf("heard last at %gs, %d streams\n%s", last, opened, strings.Join(got, "\n"))
		}
	})
}

// TestListsOfWhichNothingComesAreGivenUp after a while, which is longer the next time. What was read stays.
func TestListsOfWhichNothingComesAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		hangs := func(r *http.Request) (int, any) {
			switch {
			case strings.HasPrefix(r.URL.Path, "/v1/node/"):
				reads++
			case r.URL.Path == "/v1/allocations" && r.URL.Query().Get("filter") == occupying:
				if !pause(r.Context(), 80*time.Second) {
					return 0, context.Cause(r.Context())
				}
			}
			return stocked(r)
		}
		got := without(without(watch(t, 230*time.Second, hangs, heartbeats), "so far"), " at 0")
		compare(t, got, []string{
			"0s " + opened, "45s lost: list allocations: nothing came for 45s", "46s " + opened,
			"206s map[alloc:1 past:2] at 10", "206s heard", "226s heard", "230s over",
		})
		if reads != 1 {
			t.Errorf("the node is read %d times", reads)
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
	g := &gathering{}
	w := &Watcher{Client: NewClient(m.client(t)), Mirror: NewMirror(Hardware{}), Sink: g, Heard: func() { t.Error("all was read") }}
	w.Mirror.at = listed{1, 1, 11, 1}
	_, err := w.round(t.Context(), nil)
	got := kinds(g.changes)
	if err == nil || got["node"] != 1 || got["alloc"] < 2 || got["job"] < 1 || got["blocked"] < 1 || g.index != 0 {
		t.Errorf("got %v at %d, %v", got, g.index, err)
	}
}
