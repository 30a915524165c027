// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
)

// flooders is how many threads keep the gate busy.
const flooders = 32

// flood connects in vain, or gets a server for nothing, again and again.
func flood() error {
	runtime.GOMAXPROCS(flooders)
	for n := range flooders {
		go func() {
			for {
				if n%2 == 0 {
					if c, err := mpswire.Dial(controlSocket()); err == nil {
						c.Close()
					}
				} else if server, err := connect(controlSocket()); err == nil {
					server.Close()
				}
			}
		}()
	}
	fmt.Println("begun")
	select {}
}

// impostor takes the place of the gate whenever it is another's, and says whether it could, once.
func impostor() error {
	path := controlSocket()
	said := ""
	for {
		result, err := "in the gate's place", takePlace(path)
		if err != nil {
			result = "refused: " + err.Error()
		}
		if result != said && !errors.Is(err, os.ErrExist) { // the gate was faster, this time
			said = result
			fmt.Println(said)
		}
		time.Sleep(time.Millisecond)
	}
}

// listening is the impostor's own socket.
var listening *net.UnixListener

func takePlace(path string) error {
	var own, now unix.Stat_t
	if listening != nil && unix.Stat(path+".own", &own) == nil && unix.Stat(path, &now) == nil && own.Ino == now.Ino {
		return nil
	}
	if err := errors.Join(os.RemoveAll(path+".own"), os.RemoveAll(path)); err != nil {
		return err
	}
	next, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path + ".own", Net: "unixpacket"})
	if err != nil {
		return err
	}
	next.SetUnlinkOnClose(false)
	go func() {
		for {
			if c, err := next.Accept(); err == nil {
				_ = c.Close() // whoever it is gets no server
			}
		}
	}()
	listening = next
	return os.Link(path+".own", path)
}

// introduce prints how long it takes to get a server: in the median, and the longest of a number of
// times, in milliseconds.
func introduce(times string) error {
	count, err := strconv.Atoi(times)
	if err != nil {
		return err
	}
	took := make([]time.Duration, count)
	for i := range took {
		began := time.Now()
		server, err := connect(controlSocket())
		if err != nil {
			return err
		}
		took[i] = time.Since(began)
		server.Close()
	}
	slices.Sort(took)
	fmt.Println(took[count/2].Milliseconds(), took[count-1].Milliseconds())
	return nil
}
