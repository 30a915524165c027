// SPDX-License-Identifier: MPL-2.0

// Package clientstate reads what Nomad's client wrote down about its allocations.
//
// Nomad 1.11 tells a driver nothing while StartTask runs: a job stop, a purge, a drain
// or the death of a sibling cancel a context inside the client, and then the client
// waits for StartTask to return. Neither StopTask nor DestroyTask is called, the request's
// context lives on, and the allocation's directories stay. The client's database does
// change, at once and before anything else happens: the allocation that the server sent is
// stored with its desired status, and the event that says that the task is being killed is
// stored with the task. It is a file of the machine, so it needs no address, no token and
// no network.
package clientstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/nomad/nomad/structs"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// fileName is what Nomad calls the database, in whichever directory its state is.
const fileName = "state.db"

// ErrNone means that a process has no such database open: it is not Nomad's client, or an
// agent in dev mode, which keeps its state in memory.
var ErrNone = errors.New("no state.db is open in it")

// Find returns the path of the database that Nomad's client has open.
func Find(client int) (string, error) {
	dir := filepath.Join("/proc", strconv.Itoa(client), "fd")
	open, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("look for the state of Nomad's client: %w", err)
	}
	for _, fd := range open {
		path, err := os.Readlink(filepath.Join(dir, fd.Name()))
		if err == nil && filepath.Base(path) == fileName {
			return path, nil
		}
	}
	return "", fmt.Errorf("look for the state of Nomad's client, process %d: %w", client, ErrNone)
}

// View is the database as it was at one moment.
type View struct{ db *bbolt.DB }

// attempts is how often a copy is made that the client may have written into.
const attempts = 20

// errChanged means that the client has written into the file while it was copied.
var errChanged = errors.New("it changes faster than it can be read")

// Read reads the database. The client holds a lock on the file for as long as it
// runs, so a copy is read.
func Read(path string) (*View, error) {
	var err error
	for range attempts {
		var v *View
		if v, err = read(path); err == nil {
			return v, nil
		}
		if !errors.Is(err, errChanged) {
			break
		}
	}
	return nil, fmt.Errorf("read the state of Nomad's client in %s: %w", path, err)
}

// read copies the database. A transaction of bbolt writes to pages that the last state
// does not use, and to none that the state before it uses until it is itself the last: a
// copy is whole when the last state is the same before and after.
func read(path string) (_ *View, err error) {
	source, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer source.Close()
	before, err := lastTransaction(source)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate(fileName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	copied := os.NewFile(uintptr(fd), fileName)
	if _, err := io.Copy(copied, source); err != nil {
		return nil, errors.Join(err, copied.Close())
	}
	after, err := lastTransaction(source)
	if err == nil && after != before {
		err = errChanged
	}
	if err != nil {
		return nil, errors.Join(err, copied.Close())
	}
	db, err := bbolt.Open(path, 0, &bbolt.Options{ReadOnly: true, Timeout: time.Second,
		OpenFile: func(string, int, os.FileMode) (*os.File, error) { return copied, nil }})
	if err != nil {
		return nil, errors.Join(err, copied.Close())
	}
	v := &View{db}
	// The page that names the last state may itself have been half-written.
	err = db.View(func(tx *bbolt.Tx) error {
		if uint64(tx.ID()) != before {
			return errChanged
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// Offsets of the page size and the transaction's number in bbolt's two first pages; one of
// the two names the last state.
const (
	pageSizeAt    = 24
	transactionAt = 64
)

// lastTransaction is the number of the transaction that wrote the last state.
func lastTransaction(file *os.File) (uint64, error) {
	first := make([]byte, transactionAt+8)
	if _, err := file.ReadAt(first, 0); err != nil {
		return 0, err
	}
	second := make([]byte, 8)
	pageSize := binary.NativeEndian.Uint32(first[pageSizeAt:])
	if _, err := file.ReadAt(second, int64(pageSize)+transactionAt); err != nil {
		return 0, err
	}
	return max(binary.NativeEndian.Uint64(first[transactionAt:]), binary.NativeEndian.Uint64(second)), nil
}

// Close gives the memory of the view back.
func (v *View) Close() error { return v.db.Close() }

// entry is the part that is read of an allocation.
type entry struct {
	Alloc *struct{ DesiredStatus, DesiredDescription string }
}

// final are the events after which a client starts a task no more.
var final = map[string]bool{
	structs.TaskKilling: true, structs.TaskSiblingFailed: true, structs.TaskLeaderDead: true, structs.TaskMainDead: true,
}

// Unwanted says why Nomad no longer wants a task of an allocation to run; "" if it does,
// or if nothing is known of the task.
func (v *View) Unwanted(alloc, task string) (reason string, err error) {
	err = v.db.View(func(tx *bbolt.Tx) error {
		all := tx.Bucket([]byte("allocations"))
		if all == nil {
			return nil
		}
		of := all.Bucket([]byte(alloc))
		if of == nil {
			return nil
		}
		var e entry
		if err := decode(of.Get([]byte("alloc")), &e); err != nil {
			return fmt.Errorf("alloc %s: %w", alloc, err)
		}
		if e.Alloc != nil && (e.Alloc.DesiredStatus == structs.AllocDesiredStatusStop || e.Alloc.DesiredStatus == structs.AllocDesiredStatusEvict) {
			reason = "Nomad wants the allocation to " + e.Alloc.DesiredStatus
			if e.Alloc.DesiredDescription != "" {
				reason += ": " + e.Alloc.DesiredDescription
			}
			return nil
		}
		its := of.Bucket([]byte("task-" + task))
		if its == nil {
			return nil
		}
		var state struct{ Events []struct{ Type string } }
		if err := decode(its.Get([]byte("task_state")), &state); err != nil {
			return fmt.Errorf("task %s of alloc %s: %w", task, alloc, err)
		}
		for _, event := range state.Events {
			if final[event.Type] {
				reason = "Nomad ends the task: " + event.Type
			}
		}
		return nil
	})
	return reason, err
}

// Meta is the node's dynamic metadata, as `nomad node meta apply` and its API set it. A key
// whose value was taken away is not in it.
func (v *View) Meta() (map[string]string, error) {
	meta := map[string]string{}
	err := v.db.View(func(tx *bbolt.Tx) error {
		of := tx.Bucket([]byte("nodemeta"))
		if of == nil {
			return nil
		}
		var stored map[string]*string
		if err := decode(of.Get([]byte("meta")), &stored); err != nil {
			return fmt.Errorf("metadata of the node: %w", err)
		}
		for key, value := range stored {
			if value != nil {
				meta[key] = *value
			}
		}
		return nil
	})
	return meta, err
}

// Devices are the device instances of allocations that have a task left to run, by ID, each
// with its allocation. A task that is between two starts counts.
func (v *View) Devices() (map[string]string, error) {
	held := map[string]string{}
	err := v.db.View(func(tx *bbolt.Tx) error {
		all := tx.Bucket([]byte("allocations"))
		if all == nil {
			return nil
		}
		return all.ForEachBucket(func(id []byte) error {
			of := all.Bucket(id)
			var e struct {
				Alloc *struct {
					DesiredStatus      string
					AllocatedResources *struct {
						Tasks map[string]*struct {
							Devices []struct{ DeviceIDs []string }
						}
					}
				}
			}
			if err := decode(of.Get([]byte("alloc")), &e); err != nil {
				return fmt.Errorf("alloc %s: %w", id, err)
			}
			if e.Alloc == nil || e.Alloc.AllocatedResources == nil {
				return nil
			}
			for name, task := range e.Alloc.AllocatedResources.Tasks {
				var state struct{ State string }
				if its := of.Bucket([]byte("task-" + name)); its != nil {
					if err := decode(its.Get([]byte("task_state")), &state); err != nil {
						return fmt.Errorf("task %s of alloc %s: %w", name, id, err)
					}
				}
				if state.State == structs.TaskStateDead || state.State == "" && e.Alloc.DesiredStatus != structs.AllocDesiredStatusRun || task == nil {
					continue
				}
				for _, device := range task.Devices {
					for _, one := range device.DeviceIDs {
						held[one] = string(id)
					}
				}
			}
			return nil
		})
	})
	return held, err
}

// decode reads a value, where there is one. Other fields are passed over, so that those
// which other versions of Nomad add do no harm.
func decode(text []byte, into any) error {
	if text == nil {
		return nil
	}
	return codec.NewDecoderBytes(text, structs.MsgpackHandle).Decode(into)
}
