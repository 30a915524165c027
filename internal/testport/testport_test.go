// SPDX-License-Identifier: MPL-2.0

package testport

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

func TestAReservedAddressIsTheTests(t *testing.T) {
	address := Reserve(t)
	if conn, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("who connects gets %v, %v", conn, err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}
