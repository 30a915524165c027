// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"
)

// answer carries a command out. It reports whether that ends the daemon.
func (d *daemon) answer(words []string, privileged bool) (lines []string, quit bool) {
	if len(words) == 0 {
		return nil, false
	}
	command, args := words[0], words[1:]
	changes := strings.HasPrefix(command, "set_") || command == "start_server" || command == "shutdown_server" || command == "terminate_client" || command == "sm_partition"
	known := d.known(command)
	switch {
	case !known:
		return []string{fmt.Sprintf("Unknown command %q", command)}, false
	case command == "quit" && !privileged:
		return []string{"Not enough privilege to execute quit command"}, false
	case command == "quit":
		return nil, true
	case changes && !privileged:
		return []string{"Insufficient privileges for UID 0. Control deamon settings can only be modified by the user started it or by the root user."}, false
	}
	return d.carryOut(command, args), false
}

func (d *daemon) known(command string) bool {
	switch command {
	case "get_server_list", "start_server", "shutdown_server", "get_client_list", "get_device_client_list", "quit",
		"get_default_active_thread_percentage", "set_default_active_thread_percentage",
		"get_active_thread_percentage", "set_active_thread_percentage":
		return true
	case "get_default_device_pinned_mem_limit", "set_default_device_pinned_mem_limit",
		"get_device_pinned_mem_limit", "set_device_pinned_mem_limit",
		"terminate_client", "ps", "get_default_client_priority", "set_default_client_priority":
		return d.branch.memory
	case "get_server_status":
		return d.branch.status
	case "lspart", "sm_partition":
		return d.branch.static
	}
	return false
}

func (d *daemon) carryOut(command string, args []string) []string {
	arg := func(n int) string {
		if n < len(args) {
			return args[n]
		}
		return ""
	}
	lying := behaves(d.pipeDir, "lie")
	switch command {
	case "get_server_list":
		if d.server == nil {
			return nil
		}
		return []string{strconv.Itoa(d.server.cmd.Process.Pid)}
	case "start_server":
		d.startServer(arg(1))
		return nil
	case "get_default_active_thread_percentage":
		if lying {
			return []string{"7.0"}
		}
		return []string{fmt.Sprintf("%.1f", d.percent)}
	case "set_default_active_thread_percentage":
		if percent, err := strconv.ParseFloat(arg(0), 64); err == nil && percent > 0 && percent <= 100 {
			d.percent = percent
		}
		return []string{fmt.Sprintf("%.1f", d.percent)}
	case "get_default_device_pinned_mem_limit":
		return printMemory(d.memory[device(arg(0))])
	case "set_default_device_pinned_mem_limit":
		d.memory[device(arg(0))] = parseMemory(arg(1))
		return nil
	case "get_default_client_priority":
		return []string{strconv.Itoa(int(d.priority))}
	case "set_default_client_priority":
		priority, err := strconv.Atoi(arg(0))
		if err != nil || priority < 0 || priority > 1 {
			return []string{"Invalid priority value - must be 0 or 1!"}
		}
		d.priority = uint32(priority)
		return nil
	case "ps":
		return []string{"Server not found"}
	case "lspart", "sm_partition":
		return d.partition(command, args)
	}
	return d.askServer(command, args)
}

// askBusyServer carries out a command for a server that has not connected yet: it has no
// answer of its own.
func (d *daemon) askBusyServer(command, pid string) []string {
	switch command {
	case "get_server_status":
		return []string{"INITIALIZING"}
	case "terminate_client":
		return []string{"Server " + pid + " not found!", "1"}
	case "shutdown_server":
		_ = d.server.cmd.Process.Kill()
		return nil
	}
	d.log("Server " + pid + " is <busy>")
	return nil
}

// askServer carries out a command that is for a server, whose process ID comes
// first.
func (d *daemon) askServer(command string, args []string) []string {
	if d.server == nil || len(args) == 0 || args[0] != strconv.Itoa(d.server.cmd.Process.Pid) {
		return noServer(command, args)
	}
	s := d.server.connection
	if s.UnixConn == nil {
		return d.askBusyServer(command, args[0])
	}
	switch command {
	case "get_server_status":
		_ = s.Send32(opStatus)
		if state, err := s.Receive32(); err != nil || state == 0 {
			return []string{"FAULT"}
		}
		return []string{"ACTIVE"}
	case "get_client_list":
		return s.clientList()
	case "get_active_thread_percentage":
		return s.percentage()
	case "set_active_thread_percentage":
		percent, err := strconv.ParseFloat(last(args), 64)
		if err != nil || percent <= 0 || percent > 100 {
			return []string{"Invalid percentage, expected between (0.0, 100.0]"}
		}
		_ = s.Send32(opSetPercent)
		_ = s.SendFloat(percent)
		return s.percentage()
	case "get_device_pinned_mem_limit":
		_ = s.Send32(opMemory)
		_ = s.Send32(device(last(args)))
		bytes, _ := s.Receive64()
		return printLimit(bytes)
	case "set_device_pinned_mem_limit":
		if len(args) == 3 {
			_ = s.Send32(opSetMemory)
			_ = s.Send32(device(args[1]))
			_ = s.Send64(parseMemory(args[2]))
		}
		return nil
	case "terminate_client":
		pid, err := strconv.Atoi(last(args))
		if err != nil || !alive(pid) {
			return []string{fmt.Sprintf("Invalid process %s!", last(args)), "1"}
		}
		_ = s.Send32(opTerminate)
		_ = s.Send32(uint32(pid))
		status, _ := s.Receive32()
		return []string{strconv.Itoa(int(status))}
	case "shutdown_server":
		d.log(fmt.Sprintf("Try shutting down server %s, backoff is disabled", args[0]))
		_ = s.Send32(opShutdown)
	}
	return nil
}

// noServer is the answer about a server that there is not.
func noServer(command string, args []string) []string {
	pid := "0"
	if len(args) > 0 {
		pid = args[0]
	}
	answer := []string{"Server " + pid + " not found"}
	if command == "terminate_client" {
		answer = append(answer, "Server "+pid+" not found!", "1")
	}
	return answer
}

func (c connection) clientList() []string {
	_ = c.Send32(opClients)
	count, err := c.Receive32()
	var lines []string
	for ; err == nil && count > 0; count-- {
		var pid uint32
		if pid, err = c.Receive32(); err == nil {
			lines = append(lines, strconv.Itoa(int(pid)))
		}
	}
	return lines
}

func (c connection) percentage() []string {
	_ = c.Send32(opPercent)
	percent, err := c.ReceiveFloat()
	if err != nil {
		return nil
	}
	return []string{fmt.Sprintf("%.1f", percent)}
}

func last(args []string) string { return args[len(args)-1] }

func device(s string) uint32 {
	n, _ := strconv.ParseUint(s, 10, 32)
	return uint32(n)
}

// parseMemory reads an amount in bytes: "8G", or MiB with an "M" or without. It
// takes an unreadable one for none.
func parseMemory(s string) uint64 {
	number, err := strconv.ParseUint(strings.TrimRight(s, "GM"), 10, 32)
	if err != nil {
		return 0
	}
	if strings.HasSuffix(s, "G") {
		return number << 30
	}
	return number << 20
}

// printMemory prints a default; there is none at first.
func printMemory(bytes uint64) []string {
	if bytes == 0 {
		return nil
	}
	return printLimit(bytes)
}

// printLimit prints an amount as the originals do, rounded down.
func printLimit(bytes uint64) []string {
	if bytes >= 1<<30 {
		return []string{fmt.Sprintf("%dG", bytes>>30)}
	}
	return []string{fmt.Sprintf("%dM", bytes>>20)}
}
