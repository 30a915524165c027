package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"path/filepath"
)

// The originals talk in packets over a SOCK_SEQPACKET socket. The daemon greets,
// the other side answers with its credentials and says what it is. All numbers
// are little-endian.
const (
	hello       = "OUTBHELL\x00"
	credentials = "OUTBCRED\x00"
	kindServer  = 1
	kindUI      = 4
)

// What a daemon asks of a server.
const (
	opShutdown   = 5
	opClients    = 6
	opDevices    = 7
	opPercent    = 8
	opSetPercent = 9
	opMemory     = 11
	opSetMemory  = 12
	opTerminate  = 13
	opSnapshot   = 14
	opStatus     = 17
)

// memoryDevices is for how many devices a daemon tells a new server its limits.
const memoryDevices = 32

// connection is one side of such a talk.
type connection struct{ *net.UnixConn }

// dial connects to a daemon as kind.
func dial(pipeDir, socket string, kind uint32) (connection, error) {
	conn, err := net.Dial("unixpacket", filepath.Join(pipeDir, socket))
	if err != nil {
		return connection{}, err
	}
	c := connection{conn.(*net.UnixConn)}
	greeting, err := c.receive()
	if err == nil && string(greeting) != hello {
		err = fmt.Errorf("unexpected greeting %q", greeting)
	}
	if err == nil {
		_, err = c.Write([]byte(credentials))
	}
	if err == nil {
		err = c.send32(kind)
	}
	if err != nil {
		c.Close()
		return connection{}, err
	}
	return c, nil
}

// receive returns the next packet.
func (c connection) receive() ([]byte, error) {
	packet := make([]byte, 8192)
	n, err := c.Read(packet)
	if err == nil && n == 0 {
		err = io.EOF
	}
	return packet[:n], err
}

func (c connection) send32(n uint32) error {
	_, err := c.Write(binary.LittleEndian.AppendUint32(nil, n))
	return err
}

func (c connection) send64(n uint64) error {
	_, err := c.Write(binary.LittleEndian.AppendUint64(nil, n))
	return err
}

func (c connection) sendFloat(f float64) error { return c.send64(math.Float64bits(f)) }

var errShort = errors.New("packet is too short")

func (c connection) receive32() (uint32, error) {
	packet, err := c.receive()
	if err == nil && len(packet) < 4 {
		err = errShort
	}
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(packet), nil
}

func (c connection) receive64() (uint64, error) {
	packet, err := c.receive()
	if err == nil && len(packet) < 8 {
		err = errShort
	}
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(packet), nil
}

func (c connection) receiveFloat() (float64, error) {
	bits, err := c.receive64()
	return math.Float64frombits(bits), err
}
