// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/shoenig/test/must"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// call is the n-th call of a method of containerd's.
type call struct {
	method string
	n      int
}

// faulty is a connection to containerd that notes its calls, and fails one of them.
type faulty struct {
	mu     sync.Mutex
	counts map[string]int
	made   []call
	fails  call
	// contexts are those of the calls.
	contexts []context.Context
}

// begin forgets what was called, and has one call fail from now on; none by its zero.
func (f *faulty) begin(fails call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts, f.made, f.fails, f.contexts = map[string]int{}, nil, fails, nil
}

func (f *faulty) calls() []call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made
}

// open are the methods of calls whose contexts have not ended, and are to.
func (f *faulty) open() (methods []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, ctx := range f.contexts {
		if ctx.Done() != nil && ctx.Err() == nil {
			methods = append(methods, f.made[i].method)
		}
	}
	return methods
}

func (f *faulty) note(ctx context.Context, method string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.contexts = append(f.contexts, ctx)
	f.counts[method]++
	c := call{method, f.counts[method]}
	f.made = append(f.made, c)
	if c == f.fails {
		return status.Error(codes.Internal, "this call was to fail")
	}
	return nil
}

// throughFaults is a Runtime on the same containerd, whose calls can be made to fail.
func throughFaults(t *testing.T, r *Runtime) (*Runtime, *faulty) {
	t.Helper()
	f := &faulty{}
	f.begin(call{})
	other := &Runtime{config: r.config, log: r.log}
	c, err := client.New(r.config.Socket, client.WithDefaultNamespace(r.config.Namespace), client.WithServices(client.WithDiffService(unpacker{other})),
		client.WithExtraDialOpts([]grpc.DialOption{
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if err := f.note(ctx, method); err != nil {
					return err
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			}),
			grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				if err := f.note(ctx, method); err != nil {
					return nil, err
				}
				return open(ctx, desc, cc, method, opts...)
			}),
		}))
	must.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	other.client = c
	return other, f
}

// mayFail are the calls without which an operation succeeds.
var mayFail = map[string]bool{
	// A lease that stays is removed with the leftovers.
	"create Leases/Delete": true, "import Leases/Delete": true, "pull Leases/Delete": true, "pull again Leases/Delete": true,
	// What cannot be deleted is killed first, whatever is known of it.
	"end Tasks/Delete": true, "end Tasks/Get": true, "end Tasks/Wait": true, "exec Tasks/Get": true, "exec with input Tasks/Get": true,
}

// fixture is what an operation is prepared with, anew for each time.
type fixture struct {
	*testing.T
	*Runtime
	image Image
	id    string
}

// container makes one of the image.
func (f fixture) container(command ...string) {
	f.Helper()
	_, err := f.Create(f.Context(), NewContainer{ID: f.id, Image: f.image, Options: []oci.SpecOpts{oci.WithProcessArgs(command...), oci.WithEnv([]string{"PATH=/bin"})},
		Runtime: "io.containerd.runc.v2"})
	must.NoError(f, err)
}

// operation is something that the driver asks for. It is prepared, and then run.
type operation func(f fixture) (run func(ctx context.Context) error)

// ofContainer is an operation on a container, which runs if it is to.
func ofContainer(runs bool, do func(ctx context.Context, c *Container) error) operation {
	return func(f fixture) func(context.Context) error {
		f.container("sleep", "1000")
		c := f.Unloaded(f.id, f.image.Name, nil, nil)
		if runs {
			must.NoError(f, c.Start(f.Context(), Stdio{}))
		}
		return func(ctx context.Context) error { return do(ctx, c) }
	}
}

var operations = map[string]operation{
	"version": func(f fixture) func(context.Context) error {
		return func(ctx context.Context) error { _, err := f.Version(ctx); return err }
	},
	"snapshotters": func(f fixture) func(context.Context) error {
		return func(ctx context.Context) error { _, err := f.Snapshotters(ctx); return err }
	},
	"find": func(f fixture) func(context.Context) error {
		return func(ctx context.Context) error { _, err := f.Owned(ctx); return err }
	},
	"import": func(f fixture) func(context.Context) error {
		archive := boxArchive(f.T, f.id+f.config.Owner)
		return func(ctx context.Context) error { _, err := f.Import(ctx, bytes.NewReader(archive), ""); return err }
	},
	"pull": func(f fixture) func(context.Context) error {
		h := newHub(f.T, boxArchive(f.T, f.id+f.config.Owner))
		return func(ctx context.Context) error {
			_, err := f.Pull(ctx, Pull{Ref: h.ref(), Credentials: noLogin, Access: "key"})
			return err
		}
	},
	"pull again": func(f fixture) func(context.Context) error {
		h := newHub(f.T, boxArchive(f.T, "again"+f.config.Owner))
		_, err := f.Pull(f.Context(), Pull{Ref: h.ref(), Credentials: noLogin})
		must.NoError(f, err)
		return func(ctx context.Context) error {
			_, err := f.Pull(ctx, Pull{Ref: h.ref(), Credentials: noLogin})
			return err
		}
	},
	"image": func(f fixture) func(context.Context) error {
		f.configs.forget(f.image.Digest)
		return func(ctx context.Context) error { _, err := f.Runtime.Image(ctx, f.image.Name, ""); return err }
	},
	"touch image": func(f fixture) func(context.Context) error {
		return func(ctx context.Context) error { return f.TouchImage(ctx, f.image.Name, time.Now()) }
	},
	"collect images": func(f fixture) func(context.Context) error {
		box(f.T, f.Runtime, f.id)
		return func(ctx context.Context) error { _, err := f.CollectImages(ctx, time.Now().Add(time.Hour)); return err }
	},
	"collect leftovers": func(f fixture) func(context.Context) error {
		f.container("true")
		ctx := f.with(f.Context())
		_, err := f.client.SnapshotService("overlayfs").Update(ctx, snapshots.Info{Name: f.id, Labels: map[string]string{"containerd.io/gc.root": "now"}}, "labels.containerd.io/gc.root")
		must.NoError(f, err)
		must.NoError(f, f.client.ContainerService().Delete(ctx, f.id))
		_, _, err = (&Runtime{config: f.config, client: f.client}).protect(ctx)
		must.NoError(f, err)
		return func(ctx context.Context) error {
			return f.CollectLeftovers(ctx, regexp.MustCompile("^"+f.id+"$"), time.Now().Add(time.Hour))
		}
	},
	"create": func(f fixture) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := f.Create(ctx, NewContainer{ID: f.id, Image: f.image, User: "app", Groups: []string{"extra"}, Runtime: "io.containerd.runc.v2"})
			return err
		}
	},
	"load":           ofContainer(false, func(ctx context.Context, c *Container) error { _, err := c.runtime.Load(ctx, c.ID); return err }),
	"start":          ofContainer(false, func(ctx context.Context, c *Container) error { return c.Start(ctx, Stdio{}) }),
	"set labels":     ofContainer(false, func(ctx context.Context, c *Container) error { return c.SetLabels(ctx, map[string]string{"a": "b"}) }),
	"current labels": ofContainer(false, func(ctx context.Context, c *Container) error { _, err := c.CurrentLabels(ctx); return err }),
	"remove":         ofContainer(false, func(ctx context.Context, c *Container) error { return c.Remove(ctx) }),
	"status":         ofContainer(true, func(ctx context.Context, c *Container) error { _, err := c.Status(ctx); return err }),
	"metrics":        ofContainer(true, func(ctx context.Context, c *Container) error { _, err := c.Metrics(ctx); return err }),
	"signal":         ofContainer(true, func(ctx context.Context, c *Container) error { return c.Signal(ctx, syscall.SIGUSR2, true) }),
	"sessions":       ofContainer(true, func(ctx context.Context, c *Container) error { _, err := c.Sessions(ctx); return err }),
	"end sessions":   ofContainer(true, func(ctx context.Context, c *Container) error { return c.EndSessions(ctx) }),
	"end":            ofContainer(true, func(ctx context.Context, c *Container) error { return c.End(ctx) }),
	"exec with input": ofContainer(true, func(ctx context.Context, c *Container) error {
		_, err := c.Exec(ctx, Exec{Command: []string{"cat"}, Stdin: strings.NewReader("input"), Stdout: io.Discard, Stderr: io.Discard})
		return err
	}),
	"exec": ofContainer(true, func(ctx context.Context, c *Container) error {
		_, err := c.Exec(ctx, Exec{Command: []string{"true"}, Stdout: io.Discard, Stderr: io.Discard})
		return err
	}),
}

// repeats is how many calls of one method are made to fail in an operation: more of them
// are of a loop.
const repeats = 3

// TestNoCallToContainerdFailsUnnoticed: each call that an operation makes is made to fail
// once, and the operation says so. An error that is lost would be taken for a container,
// an image or a leftover that is not there.
func TestNoCallToContainerdFailsUnnoticed(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, inner *Runtime) {
		r, faults := throughFaults(t, inner)
		image := box(t, inner, "box")
		must.NoError(t, inner.TouchImage(t.Context(), image.Name, time.Now().Add(24*time.Hour))) // while others are collected
		tries := 0
		try := func(name string, fails call) (made []call, err error) {
			tries++
			faults.begin(call{})
			run := operations[name](fixture{t, r, image, fmt.Sprintf("call-%d", tries)})
			faults.begin(fails)
			err = run(context.WithoutCancel(t.Context()))
			made = faults.calls()
			must.SliceEmpty(t, faults.open(), must.Sprint(name, fails, "has ended, and so have the contexts of its calls"))
			faults.begin(call{})
			c := inner.Unloaded(fmt.Sprintf("call-%d", tries), "", nil, nil)
			must.NoError(t, c.End(t.Context()))
			must.NoError(t, c.Remove(t.Context()))
			return made, err
		}
		for _, name := range slices.Sorted(maps.Keys(operations)) {
			made, err := try(name, call{})
			must.NoError(t, err, must.Sprint(name))
			must.SliceNotEmpty(t, made, must.Sprint(name))
			for _, c := range made {
				if c.n > repeats || !drawn(t, fmt.Sprint(name, c)) {
					continue
				}
				_, err := try(name, c)
				if err == nil && !mayFail[name+" "+c.method[strings.LastIndex(c.method, ".")+1:]] {
					t.Errorf("%s: %s fails, and its error is lost", name, c.method)
				}
			}
		}
	})
}

// TestAnImageIsUnprovenUntilItsPullHasEnded: others may not use it before, also where the pull
// is cut off.
func TestAnImageIsUnprovenUntilItsPullHasEnded(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, inner *Runtime) {
		r, faults := throughFaults(t, inner)
		h := newHub(t, boxArchive(t, "unproven"+r.config.Owner))
		pull := Pull{Ref: h.ref(), Credentials: noLogin}
		faults.begin(call{"/containerd.services.images.v1.Images/Update", 1})
		_, err := r.Pull(t.Context(), pull)
		must.ErrorContains(t, err, "this call was to fail")
		faults.begin(call{})
		image, err := inner.client.ImageService().Get(inner.with(t.Context()), h.ref())
		must.NoError(t, err)
		must.Eq(t, unproven, image.Labels[accessLabel])
		_, err = r.Pull(t.Context(), pull)
		must.NoError(t, err)
		image, err = inner.client.ImageService().Get(inner.with(t.Context()), h.ref())
		must.NoError(t, err)
		must.NotEq(t, unproven, image.Labels[accessLabel])

		// Again, over one that has labels of others: they stay.
		image.Labels["of others"] = "x"
		_, err = inner.client.ImageService().Update(inner.with(t.Context()), image)
		must.NoError(t, err)
		faults.begin(call{"/containerd.services.images.v1.Images/Update", 2})
		_, err = r.Pull(t.Context(), pull)
		must.ErrorContains(t, err, "this call was to fail")
		image, err = inner.client.ImageService().Get(inner.with(t.Context()), h.ref())
		must.NoError(t, err)
		must.Eq(t, unproven, image.Labels[accessLabel])
		must.Eq(t, "x", image.Labels["of others"])
	})
}
