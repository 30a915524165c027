// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
)

// server is an MPS server without a GPU: it keeps what the daemon tells it.
type server struct {
	connection
	pipeDir string
	percent float64
	memory  map[uint32]uint64
	gone    map[int]bool
}

// serveClients registers with the daemon of a pipe directory, and answers it
// until it goes.
func serveClients(pipeDir string) error {
	for behaves(pipeDir, "initializing") {
		time.Sleep(10 * time.Millisecond)
	}
	conn, err := dial(pipeDir, "control", mpswire.KindServer)
	if err != nil {
		return fmt.Errorf("register with MPS control daemon: %w", err)
	}
	defer conn.Close()
	logLine("Startup")
	logLine("Initializing server process")
	if behaves(pipeDir, "no-server") {
		logLine("Driver initialization failed with: " + errNoDevice.Error())
		logLine("Failed to start : " + errNoDevice.Error())
		return errNoDevice
	}
	s := &server{connection: conn, pipeDir: pipeDir, memory: map[uint32]uint64{}, gone: map[int]bool{}}
	if _, err := s.Write(make([]byte, 516)); err != nil {
		return err
	}
	if s.percent, err = s.ReceiveFloat(); err != nil {
		return err
	}
	for {
		packet, err := s.Receive()
		switch {
		case err != nil:
			return nil // the daemon has ended
		case len(packet) == 8: // the count of the limits that follow; branch 470 has none
			if err := s.receiveLimits(); err != nil {
				return err
			}
		case binary.LittleEndian.Uint32(packet) == opShutdown:
			if len(s.clients()) == 0 {
				return nil
			}
		default:
			if err := s.answer(binary.LittleEndian.Uint32(packet)); err != nil {
				return err
			}
		}
	}
}

// errNoDevice is how CUDA's failure to initialize is logged on a machine without a GPU.
var errNoDevice = errors.New("no CUDA-capable device is detected")

// logLine writes a line of server.log as the original does.
func logLine(line string) {
	file, err := os.OpenFile(filepath.Join(os.Getenv("CUDA_MPS_LOG_DIRECTORY"), "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	defer file.Close()
	fmt.Fprintf(file, "[%s Other %5d] %s\n", time.Now().Format("2006-01-02 15:04:05.000"), os.Getpid(), line)
}

// receiveLimits takes the memory limits, and the priority of new clients.
func (s *server) receiveLimits() error {
	for device := range uint32(memoryDevices) {
		limit, err := s.Receive64()
		if err != nil {
			return err
		}
		s.memory[device] = limit
	}
	_, err := s.Receive32()
	return err
}

func (s *server) answer(op uint32) error {
	switch op {
	case opClient:
		fd, err := s.ReceiveFile()
		if err == nil {
			go holdClient(fd)
		}
		return err
	case opClients:
		return s.sendClients()
	case opDevices, opSnapshot:
		return s.Send32(0)
	case opPercent:
		return s.SendFloat(s.percent)
	case opSetPercent:
		percent, err := s.ReceiveFloat()
		if !behaves(s.pipeDir, "keep") {
			s.percent = percent
		}
		return err
	case opMemory:
		device, err := s.Receive32()
		if err != nil {
			return err
		}
		return s.Send64(s.memory[device])
	case opSetMemory:
		device, err := s.Receive32()
		if err != nil {
			return err
		}
		limit, err := s.Receive64()
		if !behaves(s.pipeDir, "keep") {
			s.memory[device] = limit
		}
		return err
	case opTerminate:
		pid, err := s.Receive32()
		if err != nil {
			return err
		}
		return s.terminate(int(pid))
	case opStatus:
		return s.Send32(s.state())
	}
	return nil // the end of the greeting
}

// state is 0 for FAULT, anything else for ACTIVE. INITIALIZING is what the daemon
// says of a server that has not registered.
func (s *server) state() uint32 {
	if behaves(s.pipeDir, "fault") && (!s.namesClients() || len(s.clients()) > 0) {
		return 0
	}
	return 1
}

func (s *server) namesClients() bool {
	return slices.ContainsFunc(behaviors(s.pipeDir), func(line string) bool { return strings.HasPrefix(line, "clients ") })
}

// clients are those that the behavior names, as long as they live.
func (s *server) clients() []int {
	var all []int
	for _, line := range behaviors(s.pipeDir) {
		words := strings.Fields(line)
		if words[0] != "clients" {
			continue
		}
		for _, word := range words[1:] {
			pid, err := strconv.Atoi(word)
			if err != nil || s.gone[pid] {
				continue
			}
			if alive(pid) {
				all = append(all, pid)
			}
		}
	}
	return all
}

func (s *server) sendClients() error {
	clients := s.clients()
	if err := s.Send32(uint32(len(clients))); err != nil {
		return err
	}
	for _, pid := range clients {
		if err := s.Send32(uint32(pid)); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) terminate(pid int) error {
	if !slices.Contains(s.clients(), pid) || behaves(s.pipeDir, "stubborn") {
		return s.Send32(1)
	}
	s.gone[pid] = true
	list, err := os.OpenFile(filepath.Join(s.pipeDir, "terminated"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	fmt.Fprintln(list, pid)
	list.Close()
	return s.Send32(0)
}

// behaviors are the lines that tell how to misbehave.
func behaviors(pipeDir string) []string {
	text, err := os.ReadFile(filepath.Join(pipeDir, "behavior"))
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool { return strings.TrimSpace(line) == "" })
}

func behaves(pipeDir, word string) bool { return slices.Contains(behaviors(pipeDir), word) }

func alive(pid int) bool {
	_, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid)))
	return err == nil
}
