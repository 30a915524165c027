// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"
)

// waitsFor is a pull that one caller waits for, with what it does about its registry.
func waitsFor(t *testing.T, p Pull, registry func(context.Context, *meter)) (time.Duration, error) {
	t.Helper()
	var g pullGroup
	began := time.Now()
	_, err := g.do(t.Context(), "key", p, func(ctx context.Context, m *meter) (Image, error) {
		registry(ctx, m)
		return Image{}, ctx.Err()
	})
	return time.Since(began), err
}

// TestAPullThatOnlyTricklesIsIdle: a registry with one byte per second would keep a
// start for ever.
func TestAPullThatOnlyTricklesIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took, err := waitsFor(t, Pull{IdleTimeout: 5 * time.Minute}, func(ctx context.Context, m *meter) {
			m.wait(1)
			for range 3600 {
				if !pauseIn(ctx, time.Second) {
					return
				}
				m.add(1)
			}
		})
		must.ErrorIs(t, err, ErrPullIdle)
		must.Eq(t, 5*time.Minute, took.Truncate(time.Minute))
	})
}

func pauseIn(ctx context.Context, pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-ctx.Done():
		return false
	}
}

// TestAPullTellsHowFarItIs every five seconds, until it ends, to each that waits for it.
func TestAPullTellsHowFarItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g pullGroup
		pull := func(ctx context.Context, m *meter) (Image, error) {
			m.add(3)
			time.Sleep(6 * time.Second)
			m.add(4)
			time.Sleep(6 * time.Second)
			return Image{}, nil
		}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				var told []int64
				_, err := g.do(t.Context(), "key", Pull{Progress: func(received int64) { told = append(told, received) }}, pull)
				must.NoError(t, err)
				must.Eq(t, []int64{3, 7}, told)
			})
		}
		wg.Wait()
	})
}

// TestPatienceIsPerWaiter: one that gives up early, or joins a pull that has waited for
// long, takes nothing from the others, and none waits for a pull that another left hanging.
func TestPatienceIsPerWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g pullGroup
		var pulls atomic.Int32
		pull := func(ctx context.Context, m *meter) (Image, error) {
			first := pulls.Add(1) == 1
			m.wait(1)
			if first {
				<-ctx.Done() // a connection that is dead
				return Image{}, ctx.Err()
			}
			time.Sleep(time.Second)
			return Image{Name: "a"}, nil
		}
		var wg sync.WaitGroup
		for _, patience := range []time.Duration{time.Second, 20 * time.Second, 5 * time.Minute} {
			wg.Go(func() {
				began := time.Now()
				_, err := g.do(t.Context(), "key", Pull{Ref: "a", IdleTimeout: patience}, pull)
				must.ErrorIs(t, err, ErrPullIdle)
				must.Eq(t, patience, time.Since(began))
			})
		}
		time.Sleep(15 * time.Second)
		wg.Go(func() {
			began := time.Now()
			_, err := g.do(t.Context(), "key", Pull{Ref: "a", IdleTimeout: 10 * time.Second}, pull)
			must.ErrorIs(t, err, ErrPullIdle)
			must.Eq(t, 10*time.Second, time.Since(began))
		})
		time.Sleep(stalled)
		image, err := g.do(t.Context(), "key", Pull{Ref: "a", IdleTimeout: 10 * time.Second}, pull)
		must.NoError(t, err)
		must.Eq(t, "a", image.Name)
		must.Eq(t, 2, pulls.Load())
		wg.Wait()
		must.MapEmpty(t, g.flight)
	})
}

// TestWhatIsWaitedFor is an answer with a body that matters, until it was read.
func TestWhatIsWaitedFor(t *testing.T) {
	for _, row := range []struct {
		method  string
		status  int
		waiting int
		denied  bool
	}{
		{http.MethodGet, 200, 1, false}, {http.MethodGet, 299, 1, false}, {http.MethodGet, 300, 0, false}, {http.MethodGet, 404, 0, false},
		{http.MethodHead, 200, 0, false}, {http.MethodGet, 401, 0, true}, {http.MethodGet, 403, 0, true},
	} {
		m := &meter{}
		m.denied.Store(!row.denied)
		resp, err := m.wrap(roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: row.status, Body: io.NopCloser(strings.NewReader("text"))}, nil
		})).RoundTrip(httptest.NewRequest(row.method, "http://a.example/v2/", nil))
		must.NoError(t, err)
		must.Eq(t, row.waiting, m.waiting, must.Sprint(row))
		must.Eq(t, row.denied, m.denied.Load(), must.Sprint(row))
		_, err = io.ReadAll(resp.Body)
		must.NoError(t, err)
		must.NoError(t, resp.Body.Close())
		must.Eq(t, 0, m.waiting, must.Sprint(row))
		must.Eq(t, 4, m.received.Load())
	}
}

// TestUnpackingIsNotWaiting: a layer may take longer to unpack than a registry may be
// silent.
func TestUnpackingIsNotWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unpacked := false
		_, err := waitsFor(t, Pull{IdleTimeout: 5 * time.Minute}, func(ctx context.Context, m *meter) {
			m.wait(1)
			for range 100 { // a slow line that moves
				time.Sleep(4 * time.Minute)
				m.add(leastProgress)
			}
			m.wait(-1)
			unpacked = pauseIn(ctx, 24*time.Hour)
			m.wait(1) // the next layer
			pauseIn(ctx, 6*time.Minute)
		})
		must.ErrorIs(t, err, ErrPullIdle)
		must.True(t, unpacked)
	})
}

// TestShortBodiesEnd where they are too long, however they are read.
func TestShortBodiesEnd(t *testing.T) {
	for size, whole := range map[int]bool{0: true, 9: true, 10: true, 11: false, 1000: false} {
		for _, reader := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.HalfReader, func(r io.Reader) io.Reader { return r }} {
			text := strings.Repeat("x", size)
			got, err := io.ReadAll(reader(&shortBody{io.NopCloser(strings.NewReader(text)), 10}))
			must.Eq(t, whole, err == nil, must.Sprint(size))
			must.Eq(t, whole, string(got) == text)
			must.LessEq(t, 10, len(got))
			if !whole {
				must.ErrorContains(t, err, "more than 1 MiB")
			}
		}
	}
}

// TestOnlyAnswersOfALoginAreShort: who asks for a part of an image says what it accepts,
// and gets all of it.
func TestOnlyAnswersOfALoginAreShort(t *testing.T) {
	for size, whole := range map[int]bool{1 << 20: true, 1<<20 + 1: false} {
		for _, accepts := range []string{"", "application/octet-stream"} {
			m := &meter{}
			next := roundTripper(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(strings.Repeat("x", size)))}, nil
			})
			req := httptest.NewRequest(http.MethodGet, "http://a.example/token", nil)
			req.Header.Set("Accept", accepts)
			resp, err := m.wrap(next).RoundTrip(req)
			must.NoError(t, err)
			got, err := io.ReadAll(resp.Body)
			must.Eq(t, whole || accepts != "", err == nil, must.Sprintf("%d %q", size, accepts))
			must.Eq(t, err == nil, len(got) == size)
			must.NoError(t, resp.Body.Close())
		}
	}
}

// TestAnswersOfRegistriesAreAsTheyAre: containerd would unpack them in memory of this process,
// once for each way of packing that they name.
func TestAnswersOfRegistriesAreAsTheyAre(t *testing.T) {
	for packed, ok := range map[string]bool{
		"": true, "identity": true, "gzip": true, "deflate": true, " GZIP ": true,
		"zstd": false, "gzip, gzip": false, "gzip gzip": false, "identity,zstd": false, "br": false, ",,,": true,
		strings.Repeat("gzip,", 1000): false,
	} {
		closed := false
		m := &meter{}
		next := roundTripper(func(req *http.Request) (*http.Response, error) {
			must.Eq(t, "identity", req.Header.Get("Accept-Encoding"))
			header := http.Header{}
			header.Add("Content-Encoding", packed)
			return &http.Response{StatusCode: http.StatusOK, Header: header, Body: &closing{strings.NewReader("x"), &closed}}, nil
		})
		req := httptest.NewRequest(http.MethodGet, "http://a.example/v2/a/blobs/b", nil)
		req.Header.Set("Accept", "application/octet-stream")
		req.Header.Set("Accept-Encoding", "zstd;q=1.0, gzip;q=0.8, deflate;q=0.5")
		resp, err := m.wrap(next).RoundTrip(req)
		must.Eq(t, ok, err == nil, must.Sprintf("%.40q: %v", packed, err))
		must.Eq(t, "zstd;q=1.0, gzip;q=0.8, deflate;q=0.5", req.Header.Get("Accept-Encoding"))
		if !ok {
			must.ErrorIs(t, err, ErrImageTooLarge)
			must.True(t, closed)
		} else {
			must.NoError(t, resp.Body.Close())
		}
		must.Eq(t, 0, m.waiting, must.Sprint(packed))
	}
	// What asks for nothing, as for the token of a login, is left to Go.
	for accepts, want := range map[string]string{"": "", "gzip": "identity"} {
		req := httptest.NewRequest(http.MethodGet, "http://a.example/token", nil)
		if accepts != "" {
			req.Header.Set("Accept-Encoding", accepts)
		}
		_, err := plainly(roundTripper(func(req *http.Request) (*http.Response, error) {
			must.Eq(t, want, req.Header.Get("Accept-Encoding"))
			return &http.Response{Header: http.Header{"Content-Encoding": {"gzip", "zstd"}}, Body: http.NoBody}, nil
		}), req)
		must.ErrorIs(t, err, ErrImageTooLarge)
	}
}

// closing is a body that tells when it is closed.
type closing struct {
	io.Reader
	closed *bool
}

func (c *closing) Close() error {
	*c.closed = true
	return nil
}
