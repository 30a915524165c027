// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// stocked answers whatever is asked of a Nomad that has one of each, and two pages of allocs.
func stocked(r *http.Request) (int, any) {
	q := r.URL.Query()
	switch name := call(r); {
	case strings.HasPrefix(name, "GET /v1/event/stream"):
		return http.StatusOK, "{}\n"
	case r.URL.Path == "/v1/namespaces":
		return http.StatusOK, []api.Namespace{{Name: "default"}, {Name: "n"}}
	case r.URL.Path == "/v1/nodes":
		return http.StatusOK, []api.NodeListStub{{ID: "n1", ModifyIndex: 5}}
	case r.URL.Path == "/v1/jobs" && r.Method == http.MethodGet:
		return http.StatusOK, []api.JobListStub{{ID: "j", Namespace: "n", JobModifyIndex: 5}}
	case strings.HasSuffix(r.URL.Path, "/submission"):
		return http.StatusOK, `{"Source":"job {}"}`
	case strings.HasPrefix(r.URL.Path, "/v1/job/"):
		return http.StatusOK, `{"ID":"j","Namespace":"n","JobModifyIndex":5,"Version":2}`
	case strings.HasPrefix(r.URL.Path, "/v1/node/"):
		return http.StatusOK, `{"ID":"n1","ModifyIndex":5}`
	case r.URL.Path == "/v1/allocations":
		stub := api.AllocationListStub{ID: "a1", ClientStatus: "running", DesiredStatus: "run", ModifyIndex: 5}
		if q.Get("filter") != occupying {
			stub.ClientStatus = "complete"
		}
		if q.Get("next_token") == "" && q.Has("per_page") {
			return http.StatusOK, paged{stub}
		}
		stub.ID = "a2"
		return http.StatusOK, []api.AllocationListStub{stub}
	case r.URL.Path == "/v1/evaluations":
		return http.StatusOK, `[{"ID":"e","Namespace":"n","JobID":"j","Status":"blocked","ModifyIndex":5}]`
	case r.URL.Path == "/v1/client/stats":
		return http.StatusOK, "{}"
	case r.URL.Path == "/v1/vars":
		return http.StatusOK, "[]"
	case q.Has("lock-acquire"):
		return http.StatusOK, `{"Path":"p","Lock":{"ID":"lock"}}`
	default:
		return http.StatusOK, `{"Path":"p","ModifyIndex":7}`
	}
}

// operation is one thing that is asked of Nomad.
type operation struct {
	run func(ctx context.Context, c *api.Client) error
	// needs are its requests, and what an error says where that one fails: nothing where
	// the operation can do without.
	needs map[string]string
}

var operations = map[string]operation{
	"everything": {
		func(ctx context.Context, c *api.Client) error {
			_, _, err := relist(ctx, NewClient(c), NewMirror(Hardware{}))
			return err
		},
		map[string]string{
			"GET /v1/nodes": "list nodes: ", "GET /v1/node/n1": "list nodes: ", "GET /v1/jobs": "list jobs: ", "GET /v1/job/j": "list jobs: ",
			"GET /v1/evaluations": "list evaluations: ", "GET /v1/allocations": "list allocations: ", "GET /v1/allocations next_token=after-a1": "list allocations: ",
			"GET /v1/allocations ended": "", "GET /v1/allocations next_token=after-a1 ended": "",
		},
	},
	"a round": {
		func(ctx context.Context, c *api.Client) error {
			w := &Watcher{Client: NewClient(c), Mirror: NewMirror(Hardware{}), Sink: &gathering{}, Heard: func() {}}
			_, err := w.round(ctx, nil)
			if strings.HasPrefix(err.Error(), "read event stream: ") {
				return nil
			}
			return err
		},
		map[string]string{
			"GET /v1/namespaces": "list namespaces: ", "GET /v1/event/stream": "open event stream: ", "GET /v1/nodes": "list nodes: ", "GET /v1/node/n1": "list nodes: ", "GET /v1/jobs": "list jobs: ", "GET /v1/job/j": "list jobs: ",
			"GET /v1/evaluations": "list evaluations: ", "GET /v1/allocations": "list allocations: ", "GET /v1/allocations next_token=after-a1": "list allocations: ",
			"GET /v1/allocations ended": "", "GET /v1/allocations next_token=after-a1 ended": "",
		},
	},
	"what ended": {
		func(ctx context.Context, c *api.Client) error { return NewClient(c).Ended(ctx, func([]*Alloc) {}) },
		map[string]string{"GET /v1/allocations": "list allocations that ended: ", "GET /v1/allocations next_token=after-a1": "list allocations that ended: "},
	},
	"checkpoints": {
		func(ctx context.Context, c *api.Client) error { _, err := NewClient(c).Checkpoints(ctx); return err },
		map[string]string{"GET /v1/vars": "list checkpoints of jobs: "},
	},
	"a measurement": {
		func(ctx context.Context, c *api.Client) error { _, err := NewClient(c).Measure(ctx, "n1"); return err },
		map[string]string{"GET /v1/client/stats": `measure node "n1": `},
	},
	"a job that is read": {
		func(ctx context.Context, c *api.Client) error {
			_, err := NewActor(c).Read(ctx, JobKey{"n", "j"})
			return err
		},
		map[string]string{"GET /v1/job/j": `read job "n/j": `, "GET /v1/job/j/submission version=2": ""},
	},
	"a job that is revised": {
		func(ctx context.Context, c *api.Client) error {
			return NewActor(c).Register(ctx, JobKey{"n", "j"}, []byte(`{}`))
		},
		map[string]string{"PUT /v1/jobs": `revise job "n/j": `},
	},
	"an alloc that is stopped": {
		func(ctx context.Context, c *api.Client) error { return NewActor(c).Stop(ctx, "a1", false) },
		map[string]string{"PUT /v1/allocation/a1/stop": `stop alloc "a1": `},
	},
	"one that is stopped at once": {
		func(ctx context.Context, c *api.Client) error { return NewActor(c).Stop(ctx, "a1", true) },
		map[string]string{"PUT /v1/allocation/a1/stop no_shutdown_delay=true": `stop alloc "a1": `},
	},
	"the allocs of a node": {
		func(ctx context.Context, c *api.Client) error { _, _, err := NewActor(c).Allocs(ctx, "n1"); return err },
		map[string]string{"GET /v1/allocations": `list allocations of node "n1": `},
	},
	"a variable that is read": {
		func(ctx context.Context, c *api.Client) error { _, err := NewStore(c, "n").Get(ctx, "p"); return err },
		map[string]string{"GET /v1/var/p": `read variable "p": `},
	},
	"variables": {
		func(ctx context.Context, c *api.Client) error { _, err := NewStore(c, "n").List(ctx, "p"); return err },
		map[string]string{"GET /v1/vars": `list variables "p": `},
	},
	"a variable that is written": {
		func(ctx context.Context, c *api.Client) error {
			_, err := NewStore(c, "n").Put(ctx, Item{Path: "p", Index: 3})
			return err
		},
		map[string]string{"PUT /v1/var/p cas=3": `write variable "p": `},
	},
	"a variable that is deleted": {
		func(ctx context.Context, c *api.Client) error { return NewStore(c, "n").Delete(ctx, "p", 3) },
		map[string]string{"DELETE /v1/var/p cas=3": `delete variable "p": `},
	},
	"a lock that is taken": {
		func(ctx context.Context, c *api.Client) error {
			return NewLock(c, "n", "p", "here", 15*time.Second).step(ctx)
		},
		map[string]string{"PUT /v1/var/p lock-acquire": "acquire leader lock: "},
	},
	"a lock that is renewed": {
		func(ctx context.Context, c *api.Client) error {
			l := NewLock(c, "n", "p", "here", 15*time.Second)
			l.hold("lock", time.Now())
			return l.step(ctx)
		},
		map[string]string{"PUT /v1/var/p lock-renew": "renew leader lock: "},
	},
	"who holds a lock": {
		func(ctx context.Context, c *api.Client) error {
			return NewLock(c, "n", "p", "here", 15*time.Second).learnLeader(ctx)
		},
		map[string]string{"GET /v1/var/p": "read leader lock: "},
	},
}

// Each request of each operation fails once: with an answer, by a connection that breaks, and
// by an answer that cannot be read. What comes of it is an error that says what was to be
// done, and no answer stays open.
func TestNoCallToNomadFailsUnnoticed(t *testing.T) {
	refused := func() (int, any) { return http.StatusInternalServerError, "no answer" }
	garbled := func() (int, any) { return http.StatusOK, "no answer" }
	for name, o := range operations {
		well := &inMemory{answer: stocked}
		if err := o.run(t.Context(), well.client(t)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		asked := well.requests()
		slices.Sort(asked)
		if len(asked) != len(o.needs) || len(slices.Compact(asked)) != len(o.needs) || len(well.notClosed()) > 0 {
			t.Errorf("%s: asked %q, of which %q stay open", name, asked, well.notClosed())
		}
		for one, want := range o.needs {
			for how, fails := range map[string]func() (int, any){"refused": refused, "garbled": garbled} {
				if how == "garbled" && (strings.HasPrefix(one, "DELETE") || want == "" || one == "GET /v1/event/stream" || strings.Contains(one, "/stop") || one == "PUT /v1/jobs") {
					continue // what is answered is not read, or read as it comes
				}
				m := &inMemory{answer: func(r *http.Request) (int, any) {
					if call(r) == one {
						return fails()
					}
					return stocked(r)
				}}
				err := o.run(t.Context(), m.client(t))
				if (err != nil) != (want != "") || err != nil && (!strings.Contains(err.Error(), want) || how == "refused" && !strings.Contains(err.Error(), "no answer")) {
					t.Errorf("%s, %s is %s: %v, want %q", name, one, how, err, want)
				}
				if open := m.notClosed(); len(open) > 0 {
					t.Errorf("%s, %s is %s: %q stay open", name, one, how, open)
				}
			}
		}
	}
}
