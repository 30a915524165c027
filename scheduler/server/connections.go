// SPDX-License-Identifier: MPL-2.0

package server

import (
	"errors"
	"net"
	"net/netip"
	"sync"
)

// Bounds that a connection can be above.
const (
	BoundClient = "client" // Limits.ConnectionsPerClient
	BoundAll    = "all"    // Limits.Connections
)

// bounded is a listener that closes connections above the bounds as soon as they arrive: a
// client that opens connections without end takes none from others. It stands below TLS,
// so that nothing is read of such a connection and no handshake is paid for it.
type bounded struct {
	net.Listener
	limits  Limits
	refused func(bound string) // is told of each

	mu      sync.Mutex
	open    int
	clients map[string]int // open connections; no client has 0
}

func newBounded(l net.Listener, limits Limits, refused func(bound string)) *bounded {
	if refused == nil {
		refused = func(string) {}
	}
	return &bounded{Listener: l, limits: limits, refused: refused, clients: map[string]int{}}
}

// Accept returns the next connection within the bounds.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := clientOf(c.RemoteAddr())
		bound := b.take(client)
		if bound == "" {
			return &counted{Conn: c, release: sync.OnceFunc(func() { b.release(client) })}, nil
		}
		_ = c.Close() // the client is told no more than that
		b.refused(bound)
	}
}

// take counts a connection, unless it is above a bound, which is returned then.
func (b *bounded) take(client string) (bound string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.limits.ConnectionsPerClient > 0 && b.clients[client] >= b.limits.ConnectionsPerClient:
		return BoundClient
	case b.limits.Connections > 0 && b.open >= b.limits.Connections:
		return BoundAll
	}
	b.open++
	b.clients[client]++
	return ""
}

func (b *bounded) release(client string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open--
	if b.clients[client]--; b.clients[client] == 0 {
		delete(b.clients, client)
	}
}

// clientOf is whom a connection counts for: the IPv4 address, or the /64 network of an
// IPv6 address, since a machine may have as many addresses as there are in one.
func clientOf(remote net.Addr) string {
	at, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return remote.String()
	}
	address := at.Addr().Unmap()
	if address.Is6() && !address.IsLinkLocalUnicast() {
		return netip.PrefixFrom(address, 64).Masked().String()
	}
	return address.String()
}

// counted is a connection that gives its place back when it is closed.
type counted struct {
	net.Conn
	release func()
}

func (c *counted) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// CloseWrite ends one direction of a connection that was upgraded.
func (c *counted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
