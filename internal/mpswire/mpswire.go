// SPDX-License-Identifier: MPL-2.0

// Package mpswire speaks the wire format of NVIDIA's MPS control daemon, as far as
// a daemon and those who connect to it need it to find out who the other is.
//
// The two talk in packets over a SOCK_SEQPACKET socket, and all numbers are
// little-endian. The daemon greets with Hello. The other side answers with
// Credentials, to which the kernel adds its process and user, and then with its
// kind in four bytes. What follows depends on the kind:
//
//	KindServer     commands of the daemon, for as long as the server lives
//	KindClient     Files with one descriptor, which leads to the server; then the
//	               client's status in four bytes, and it closes
//	KindDebuggee   the daemon shuts the server down
//	KindUI         commands of the control program and their answers
//
// This was recorded with NVIDIA's control programs and libcuda of the driver
// branches 470, 535, 550 and 555, which agree.
package mpswire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// What packets without numbers hold.
const (
	Hello       = "OUTBHELL\x00"
	Credentials = "OUTBCRED\x00"
	Files       = "OUTBCUFD\x00"
)

// Kind is what a program that connects says it is.
type Kind uint32

// The kinds that daemons know.
const (
	KindServer   Kind = 1
	KindClient   Kind = 2
	KindDebuggee Kind = 3
	KindUI       Kind = 4
)

func (k Kind) String() string {
	switch k {
	case KindServer:
		return "an MPS server"
	case KindClient:
		return "a CUDA program"
	case KindDebuggee:
		return "a program that is being debugged"
	case KindUI:
		return "a control program"
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// ParseKind reads the packet that says what a program is.
func ParseKind(packet []byte) (Kind, bool) {
	if len(packet) != 4 {
		return 0, false
	}
	return Kind(binary.LittleEndian.Uint32(packet)), true
}

// maxPacket is more than any packet of the originals has.
const maxPacket = 8192

// ErrShort is a packet with less than was expected in it.
var ErrShort = errors.New("packet is too short")

// ErrUnknown is an answer that no branch was seen to give.
var ErrUnknown = errors.New("the answer is not known")

// Conn is one side of a connection.
type Conn struct{ *net.UnixConn }

// dialTimeout is how long Dial waits for a listener that is held up.
const dialTimeout = 10 * time.Second

// Dial is DialWithin with a time that is enough.
func Dial(socket string) (Conn, error) { return DialWithin(socket, dialTimeout) }

// DialWithin connects to a socket. Where the listener's queue is full it waits for a place,
// as libcuda does, and fails with EAGAIN if it gets none in time.
func DialWithin(socket string, timeout time.Duration) (Conn, error) {
	file, err := dial(socket, time.Now().Add(timeout))
	if err != nil {
		return Conn{}, &fs.PathError{Op: "connect to", Path: socket, Err: err}
	}
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return Conn{}, err
	}
	return Conn{conn.(*net.UnixConn)}, nil
}

func dial(socket string, deadline time.Time) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	for again := true; again; again = errors.Is(err, unix.EINTR) {
		wait := unix.NsecToTimeval(max(time.Until(deadline), time.Millisecond).Nanoseconds())
		if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait); err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
		}
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), socket), nil
}

// ExpectHello reads the greeting.
func (c Conn) ExpectHello() error {
	greeting, err := c.Receive()
	if err == nil && string(greeting) != Hello {
		err = fmt.Errorf("%w: greeting %q", ErrUnknown, greeting)
	}
	return err
}

// Greet greets who has connected, and returns who that says it is. The kernel lets
// processes other than root say the truth only.
func (c Conn) Greet() (unix.Ucred, error) {
	if err := c.passCredentials(); err != nil {
		return unix.Ucred{}, err
	}
	if _, err := c.Write([]byte(Hello)); err != nil {
		return unix.Ucred{}, err
	}
	packet, oob := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	n, oobn, _, _, err := c.ReadMsgUnix(packet, oob)
	if err != nil {
		return unix.Ucred{}, err
	}
	if string(packet[:n]) != Credentials {
		return unix.Ucred{}, fmt.Errorf("packet %q instead of credentials", packet[:n])
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return unix.Ucred{}, err
	}
	if len(messages) != 1 {
		return unix.Ucred{}, fmt.Errorf("%d control messages instead of credentials", len(messages))
	}
	who, err := unix.ParseUnixCredentials(&messages[0])
	if err != nil {
		return unix.Ucred{}, err
	}
	return *who, nil
}

func (c Conn) passCredentials() error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var problem error
	err = raw.Control(func(fd uintptr) {
		problem = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	})
	return errors.Join(err, problem)
}

// Introduce answers the greeting: who connects, and as what. Processes other than
// root can name themselves only.
func (c Conn) Introduce(who unix.Ucred, kind Kind) error {
	if _, _, err := c.WriteMsgUnix([]byte(Credentials), unix.UnixCredentials(&who), nil); err != nil {
		return fmt.Errorf("send credentials: %w", err)
	}
	return c.Send32(uint32(kind))
}

// Receive returns the next packet. Descriptors that come with it are closed.
func (c Conn) Receive() ([]byte, error) {
	packet := make([]byte, maxPacket)
	n, err := c.Read(packet)
	if err == nil && n == 0 {
		err = io.EOF
	}
	return packet[:n], err
}

// ReceiveFile returns the descriptor that comes with the next packet, which must
// be Files.
func (c Conn) ReceiveFile() (int, error) {
	packet, oob := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(maxFiles*4)+unix.CmsgSpace(unix.SizeofUcred))
	n, oobn, _, _, err := c.ReadMsgUnix(packet, oob)
	if err != nil {
		return -1, err
	}
	files, err := parseFiles(oob[:oobn])
	if err == nil && (string(packet[:n]) != Files || len(files) != 1) {
		err = fmt.Errorf("%w: packet %q with %d descriptors instead of one", ErrUnknown, packet[:n], len(files))
	}
	if err != nil {
		for _, fd := range files {
			_ = unix.Close(fd)
		}
		return -1, err
	}
	return files[0], nil
}

// maxFiles is how many descriptors of one packet are received.
const maxFiles = 4

func parseFiles(oob []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_RIGHTS {
			files, err := unix.ParseUnixRights(&m)
			if err != nil {
				return all, err
			}
			all = append(all, files...)
		}
	}
	return all, nil
}

// SendFile sends Files with a descriptor, which stays open here.
func (c Conn) SendFile(fd int) error {
	_, _, err := c.WriteMsgUnix([]byte(Files), unix.UnixRights(fd), nil)
	return err
}

// Send32, Send64 and SendFloat send a number in a packet of its own.
func (c Conn) Send32(n uint32) error {
	_, err := c.Write(binary.LittleEndian.AppendUint32(nil, n))
	return err
}

func (c Conn) Send64(n uint64) error {
	_, err := c.Write(binary.LittleEndian.AppendUint64(nil, n))
	return err
}

func (c Conn) SendFloat(f float64) error { return c.Send64(math.Float64bits(f)) }

// Receive32, Receive64 and ReceiveFloat receive the next packet as a number.
func (c Conn) Receive32() (uint32, error) {
	packet, err := c.Receive()
	if err == nil && len(packet) < 4 {
		err = ErrShort
	}
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(packet), nil
}

func (c Conn) Receive64() (uint64, error) {
	packet, err := c.Receive()
	if err == nil && len(packet) < 8 {
		err = ErrShort
	}
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(packet), nil
}

func (c Conn) ReceiveFloat() (float64, error) {
	bits, err := c.Receive64()
	return math.Float64frombits(bits), err
}
