// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// Machine is a virtual machine whose disk lasts through reboots.
type Machine struct {
	// NomadPort is the host's port that leads to the machine's Nomad.
	NomadPort int

	image   string // the folder that e2e/vm/image made
	dir     string // of this machine's own
	payload string
	sshPort int
	// arguments are added to the kernel's.
	arguments string
	qemu      *process
}

// process is a QEMU that dies with this program: the kernel kills it when the thread
// that started it ends, so that thread stays.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

func start(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &process{cmd, make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer close(p.ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	return p, <-started
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// missing says what this machine lacks to run another one, or is empty.
func missing() string {
	for _, program := range []string{"qemu-system-x86_64", "qemu-img", "mmdebstrap", "mkfs.ext4", "ssh"} {
		if _, err := exec.LookPath(program); err != nil {
			return program + " is not there; on Debian, e2e/prepare vm installs it"
		}
	}
	if os.Getuid() != 0 {
		return "making an image needs root"
	}
	return ""
}

// accelerator is KVM where the processor offers it, and else QEMU's translator. A /dev/kvm
// without the processor's help (kvm_pvm) makes machines too, but runs no kernel of Debian's:
// it hangs in its decompressor.
func accelerator() []string {
	flags, _ := os.ReadFile("/proc/cpuinfo")
	kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err == nil {
		kvm.Close()
		if bytes.Contains(flags, []byte(" vmx ")) || bytes.Contains(flags, []byte(" svm ")) {
			return []string{"-accel", "kvm", "-cpu", "host"}
		}
	}
	return []string{"-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"}
}

// newMachine makes a machine of an image, with an empty disk over the image's, and
// the payload as its second one. It is off.
func newMachine(image, dir, payload string) (*Machine, error) {
	ports, err := cluster.FreePorts(2)
	if err != nil {
		return nil, err
	}
	m := &Machine{image: image, dir: dir, payload: payload, sshPort: ports[0], NomadPort: ports[1]}
	out, err := exec.Command("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", filepath.Join(image, "root.img"), m.disk()).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("make a disk: %w: %s", err, out)
	}
	return m, nil
}

func (m *Machine) disk() string    { return filepath.Join(m.dir, "disk.qcow2") }
func (m *Machine) console() string { return filepath.Join(m.dir, "console") }

// PowerOn boots the machine and returns when it takes commands.
func (m *Machine) PowerOn(ctx context.Context) error {
	args := append(accelerator(),
		"-smp", "2", "-m", "4096", "-display", "none", "-monitor", "none",
		"-kernel", filepath.Join(m.image, "vmlinuz"), "-initrd", filepath.Join(m.image, "initrd"),
		"-append", "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=0 "+m.arguments,
		"-drive", "file="+m.disk()+",if=virtio,cache=unsafe,discard=unmap",
		"-drive", "file="+m.payload+",if=virtio,format=raw,readonly=on",
		"-nic", fmt.Sprintf("user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:%d-:22,hostfwd=tcp:127.0.0.1:%d-:4646", m.sshPort, m.NomadPort),
		"-device", "virtio-rng-pci", "-serial", "file:"+m.console())
	cmd := exec.Command("qemu-system-x86_64", args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	var err error
	if m.qemu, err = start(cmd); err != nil {
		return fmt.Errorf("start QEMU: %w", err)
	}
	if err := m.waitSSH(ctx); err != nil {
		return fmt.Errorf("boot: %w\n%s%s", err, said.String(), m.consoleTail())
	}
	return nil
}

func (m *Machine) consoleTail() string {
	text, _ := os.ReadFile(m.console())
	return string(text[max(0, len(text)-2000):])
}

// kernelPanic is a kernel's last words on the console, from their cause on.
var kernelPanic = regexp.MustCompile(`(?s)[^\n]*(?:(?:Oops|BUG): .*?)?Kernel panic - not syncing[^\n]*`)

// panicked is what the machine's kernel said when it panicked, or empty.
func (m *Machine) panicked() string {
	text, _ := os.ReadFile(m.console())
	return string(kernelPanic.Find(text))
}

func (m *Machine) waitSSH(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		_, err := m.Exec(ctx, "mkdir -p /opt/gpu && { mountpoint -q /opt/gpu || mount -o ro /dev/vdb /opt/gpu; }")
		if err == nil {
			return nil
		}
		if said := m.panicked(); said != "" {
			return errors.New(said)
		}
		select {
		case <-tick.C:
		case <-m.qemu.ended:
			return errors.New("the machine ended")
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, ctx.Err())
		}
	}
}

// PowerOff pulls the plug.
func (m *Machine) PowerOff() {
	if m.qemu != nil {
		m.qemu.kill()
		m.qemu = nil
	}
}

// Reboot shuts the machine down in order and boots it again.
func (m *Machine) Reboot(ctx context.Context) error {
	before, err := m.Exec(ctx, "cat /proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	// The connection may end before the command does.
	_, _ = m.Exec(ctx, "systemctl reboot")
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		after, err := m.Exec(ctx, "cat /proc/sys/kernel/random/boot_id")
		if err == nil && after != before {
			return m.waitSSH(ctx)
		}
		select {
		case <-tick.C:
		case <-m.qemu.ended:
			return errors.New("reboot: the machine ended")
		case <-ctx.Done():
			return fmt.Errorf("reboot: %w\n%s", ctx.Err(), m.consoleTail())
		}
	}
}

// Exec runs a script on the machine, as root, and returns its output. It ends
// with the first command that fails.
func (m *Machine) Exec(ctx context.Context, script string) (string, error) {
	var out bytes.Buffer
	if err := m.runTo(ctx, script, &out); err != nil {
		return out.String(), fmt.Errorf("%w\n%s\n%s%s", err, strings.TrimSpace(script), out.String(), m.panicked())
	}
	return strings.TrimSpace(out.String()), nil
}

// runTo is Exec with the output as it comes.
func (m *Machine) runTo(ctx context.Context, script string, out io.Writer) error {
	cmd := exec.CommandContext(ctx, "ssh", "-i", filepath.Join(m.image, "key"), "-p", fmt.Sprint(m.sshPort),
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
		"-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=20", "-o", "ServerAliveCountMax=15",
		"root@127.0.0.1", "bash", "-euo", "pipefail", "-s")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(script+"\n"), out, out
	return cmd.Run()
}
