package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
)

// Pull says what to fetch.
type Pull struct {
	Ref         string
	Snapshotter string
	Credentials Credentials
	// IdleTimeout ends a pull that receives nothing for so long; 0 for never. A
	// big image over a slow line may take as long as it moves.
	IdleTimeout time.Duration
	// Progress is called with the bytes received so far, now and then.
	Progress func(received int64)
}

// Reasons why a pull failed, beside those that nobody can name.
var (
	// ErrPullIdle means that a registry sent nothing for the idle timeout.
	ErrPullIdle = errors.New("no data from the registry")
	// ErrPullDenied means that a registry refused the login, or wants one.
	ErrPullDenied = errors.New("the registry denies access")
	// ErrPullMissing means that a registry has no such image.
	ErrPullMissing = errors.New("the registry has no such image")
)

// Pull fetches and unpacks an image.
func (r *Runtime) Pull(ctx context.Context, p Pull) (Image, error) {
	ctx, cancel := context.WithCancelCause(r.with(ctx))
	defer cancel(nil)
	ctx, done, err := r.protect(ctx)
	if err != nil {
		return Image{}, err
	}
	defer done()
	meter := newMeter(p, cancel)
	defer meter.stop()

	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: r.hosts(ctx, p.Credentials, meter.wrap)})
	options := []client.RemoteOpt{
		client.WithResolver(resolver),
		client.WithPullUnpack,
		client.WithPullLabel(managedLabel, "true"),
	}
	if s := r.snapshotter(p.Snapshotter); s != "" {
		options = append(options, client.WithPullSnapshotter(s))
	}
	handle, err := r.client.Pull(ctx, p.Ref, options...)
	if err != nil {
		return Image{}, fmt.Errorf("pull image %q: %w", p.Ref, meter.explain(ctx, err))
	}
	return r.ready(ctx, handle, p.Snapshotter)
}

// explain names the reason of a failed pull, where there is a name for it.
func (m *meter) explain(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case cause != nil:
		return cause
	case m.denied.Load():
		return fmt.Errorf("%w: %w", ErrPullDenied, err)
	case errdefs.IsNotFound(err):
		return fmt.Errorf("%w: %w", ErrPullMissing, err)
	}
	return err
}

// meter counts what a pull receives, and ends the pull when nothing comes.
type meter struct {
	received atomic.Int64
	// denied is whether the last answer was a refusal. Containerd's errors tell
	// that in their text only.
	denied   atomic.Bool
	idle     *time.Timer
	timeout  time.Duration
	progress func(int64)
	done     chan struct{}
	once     sync.Once
}

const progressInterval = 5 * time.Second

func newMeter(p Pull, cancel context.CancelCauseFunc) *meter {
	m := &meter{timeout: p.IdleTimeout, progress: p.Progress, done: make(chan struct{})}
	if p.IdleTimeout > 0 {
		m.idle = time.AfterFunc(p.IdleTimeout, func() {
			cancel(fmt.Errorf("%w for %s", ErrPullIdle, p.IdleTimeout))
		})
	}
	if p.Progress != nil {
		go m.report()
	}
	return m
}

func (m *meter) report() {
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			m.progress(m.received.Load())
		case <-m.done:
			return
		}
	}
}

func (m *meter) stop() {
	m.once.Do(func() {
		close(m.done)
		if m.idle != nil {
			m.idle.Stop()
		}
	})
}

func (m *meter) add(n int) {
	if n <= 0 {
		return
	}
	m.received.Add(int64(n))
	if m.idle != nil {
		m.idle.Reset(m.timeout)
	}
}

func (m *meter) wrap(next http.RoundTripper) http.RoundTripper {
	if next == nil {
		next = http.DefaultTransport
	}
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err == nil {
			m.denied.Store(resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden)
			resp.Body = &meteredBody{resp.Body, m}
		}
		return resp, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

type meteredBody struct {
	io.ReadCloser
	meter *meter
}

func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.meter.add(n)
	return n, err
}

// pullGroup lets tasks that want the same image share one pull. The pull ends
// when the last of them has gone.
type pullGroup struct {
	mu     sync.Mutex
	flight map[string]*flight
}

type flight struct {
	waiters int
	cancel  context.CancelFunc
	done    chan struct{}
	image   Image
	err     error
}

// do runs pull once for all callers with the same key.
func (g *pullGroup) do(ctx context.Context, key string, pull func(context.Context) (Image, error)) (Image, error) {
	f := g.join(key, pull)
	select {
	case <-f.done:
		g.leave(key, f)
		return f.image, f.err
	case <-ctx.Done():
		g.leave(key, f)
		return Image{}, ctx.Err()
	}
}

func (g *pullGroup) join(key string, pull func(context.Context) (Image, error)) *flight {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f, ok := g.flight[key]; ok {
		f.waiters++
		return f
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &flight{waiters: 1, cancel: cancel, done: make(chan struct{})}
	if g.flight == nil {
		g.flight = map[string]*flight{}
	}
	g.flight[key] = f
	go func() {
		defer close(f.done)
		f.image, f.err = pull(ctx)
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.flight[key] == f {
			delete(g.flight, key)
		}
	}()
	return f
}

func (g *pullGroup) leave(key string, f *flight) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.waiters--
	if f.waiters > 0 {
		return
	}
	f.cancel()
	if g.flight[key] == f {
		delete(g.flight, key)
	}
}

// PullShared is Pull, with callers of the same key sharing one download. Key
// must tell apart what differs in reference, snapshotter and login.
func (r *Runtime) PullShared(ctx context.Context, key string, p Pull) (Image, error) {
	return r.pulls.do(ctx, key, func(ctx context.Context) (Image, error) { return r.Pull(ctx, p) })
}
