// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/go-hclog"
)

// from is a connection that comes from an address.
type from struct {
	net.Conn
	address string
}

func (f from) RemoteAddr() net.Addr { return stringAddr(f.address) }

type stringAddr string

func (stringAddr) Network() string  { return "tcp" }
func (a stringAddr) String() string { return string(a) }

// A client gets no more than its connections, all together get no more than there are,
// and whoever closes one gives it back, once.
func TestConnectionsAreBounded(t *testing.T) {
	l, refused := newPipes(), map[string]int{}
	b := newBounded(l, Limits{Connections: 5, ConnectionsPerClient: 2}, func(bound string) { refused[bound]++ })
	defer b.Close()
	// accept has addresses connect, in order, and returns the connection of the last,
	// which is within the bounds.
	accept := func(addresses ...string) (accepted net.Conn) {
		t.Helper()
		arrive := make(chan struct{})
		go func() {
			defer close(arrive)
			for i, address := range addresses {
				near, far := net.Pipe()
				l.accept <- from{far, address}
				if i < len(addresses)-1 {
					if _, err := near.Read(make([]byte, 1)); err != io.EOF {
						t.Errorf("a connection from %s is not closed: %v", address, err)
					}
				}
			}
		}()
		accepted, err := b.Accept()
		if <-arrive; err != nil {
			t.Fatal(err)
		}
		return accepted
	}
	want := func(what string, client, all int) {
		t.Helper()
		if refused[BoundClient] != client || refused[BoundAll] != all {
			t.Errorf("%s: refused %v", what, refused)
		}
	}
	first := accept("10.0.0.1:1")
	accept("10.0.0.1:2")
	accept("10.0.0.1:3", "10.0.0.1:4", "[::ffff:10.0.0.1]:5", "10.0.0.2:1")
	want("a third of one client", 3, 0)
	accept("[2001:db8::1]:1")
	accept("[2001:db8::2]:1")
	want("two of one network", 3, 0)
	first.Close()
	first.Close()
	third := accept("[2001:db8::3]:1", "10.0.0.1:6")
	want("a third of one network", 4, 0)
	third.Close()
	accept("10.0.0.3:1")
	go func() {
		near, far := net.Pipe()
		l.accept <- from{far, "10.0.0.4:1"}
		_, _ = near.Read(make([]byte, 1)) // until it is closed
		b.Close()
	}()
	if c, err := b.Accept(); err == nil {
		t.Errorf("a sixth connection, from %s", c.RemoteAddr())
	}
	want("a sixth", 4, 1)
	if b.open != 5 || b.clients["10.0.0.1"] != 1 || b.clients["2001:db8::/64"] != 2 || len(b.clients) != 4 {
		t.Errorf("counted %d, %v", b.open, b.clients)
	}
}

func TestClientOf(t *testing.T) {
	for remote, want := range map[string]string{
		"10.0.0.1:80": "10.0.0.1", "[::ffff:10.0.0.1]:80": "10.0.0.1", "[::1]:80": "::/64", "[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:80": "fe80::1%eth0", "@": "@", "": "",
	} {
		if got := clientOf(stringAddr(remote)); got != want {
			t.Errorf("%s: %s, want %s", remote, got, want)
		}
	}
}

// A stranger's idle connections keep no other client from being answered, and what is above
// the bound is closed at once.
func TestIdleConnectionsOfOneLockNoOtherOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, refused := newPipes(), 0
		limits := testLimits
		limits.Connections, limits.ConnectionsPerClient = 20, 10
		s, err := New(Config{Nomad: &url.URL{Scheme: "http", Host: "nomad"}, Decider: &fakeDecider{}, Limits: limits, Refused: func(string) { refused++ }, Logger: hclog.NewNullLogger()})
		if err != nil {
			t.Fatal(err)
		}
		s.Handle("GET /api/hello", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
		done := make(chan error, 1)
		go func() { done <- s.Serve(t.Context(), l) }()
		var idle []net.Conn
		for port := range 1000 {
			near, far := net.Pipe()
			l.accept <- from{far, fmt.Sprintf("10.0.0.1:%d", port)}
			idle = append(idle, near)
		}
		near, far := net.Pipe()
		l.accept <- from{far, "10.0.0.2:1"}
		if _, err := io.WriteString(near, "GET /api/hello HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if resp, err := http.ReadResponse(bufio.NewReader(near), nil); err != nil || resp.StatusCode != http.StatusOK || refused != 990 {
			t.Errorf("another client gets %v, %v; refused %d", resp, err, refused)
		}
		for _, c := range append(idle, near) {
			c.Close()
		}
		l.Close()
		<-done
	})
}
