package overlays

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
)

// The node's next agent must join the gossip before a manager has answered it: other nodes give up a node after some
// silent seconds, and a manager refuses the sessions of an agent that starts often. So it needs the managers' last
// message. That has the swarm's keys, which must not be on a disk: the keeper holds it in a memory file.

// memoryName is its name at the keeper.
const memoryName = "swarm/overlays"

// The bounds of a memory.
const (
	maxMemory  = 1 << 20
	memoryTime = 2 * time.Second // for the keeper's answer
)

// memoryOf returns the part of a manager's message for the next agent; nil if the message has no keys.
func memoryOf(node string, m *swarmv1.SessionMessage) ([]byte, error) {
	if len(m.GetNetworkBootstrapKeys()) == 0 {
		return nil, nil
	}
	keep := &swarmv1.SessionMessage{
		Node: &swarmv1.Node{Id: node}, Managers: m.GetManagers(), NetworkBootstrapKeys: m.GetNetworkBootstrapKeys(),
	}
	for _, a := range m.GetNode().GetAttachments() {
		if a.GetNetwork().GetSpec().GetIngress() {
			keep.Node.Attachments = append(keep.Node.Attachments, a)
		}
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(keep)
	if err == nil && len(data) > maxMemory {
		err = fmt.Errorf("%d bytes are too many", len(data))
	}
	return data, err
}

// remember stores the managers' message at the keeper. It reports whether no retry is needed soon.
func (k *loop) remember(ctx context.Context, s *Networks, data []byte) bool {
	if s.o.Memory == nil || data == nil {
		return true
	}
	// Keeper and holder may have died since; once a minute it is stored again.
	if slices.Equal(data, k.memory) && time.Since(k.storedAt) < time.Minute {
		return true
	}
	err := writeMemory(ctx, s.o.Memory, data)
	if err != nil && !k.storeFailed {
		s.o.Logger.WarnContext(ctx, "could not store the swarm's keys at the keeper: after a restart the agent needs a manager to join the gossip", "error", err.Error())
	}
	if k.storeFailed = err != nil; k.storeFailed && !errdefs.IsFailedPrecondition(err) {
		return false
	}
	k.memory, k.storedAt = data, time.Now()
	return true
}

func writeMemory(ctx context.Context, h core.Holder, data []byte) error {
	f, err := memory(data)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	ctx, cancel := context.WithTimeout(ctx, memoryTime)
	defer cancel()
	return h.Hold(ctx, memoryName, []*os.File{f})
}

// memory returns a sealed memory file: it is on no disk, and cannot be changed.
func memory(data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("swarm", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "swarm")
	if _, err = f.Write(data); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// recall reads the managers' message to an earlier agent from the holder. A message to this agent takes precedence.
// It reports whether the holder need not be read again.
func (s *Networks) recall(ctx context.Context) bool {
	if s.o.Memory == nil {
		return true
	}
	short, cancel := context.WithTimeout(ctx, memoryTime)
	defer cancel()
	m, err := readMemory(short, s.o.Memory)
	switch {
	case errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err):
		return true
	case err == nil && m.GetNode().GetId() != s.o.Node:
		err = fmt.Errorf("it is node %q's: %w", m.GetNode().GetId(), errdefs.ErrDataLoss)
	}
	if err != nil {
		level := slog.LevelDebug // it is tried again each second
		if errdefs.IsDataLoss(err) {
			level = slog.LevelWarn
		}
		s.o.Logger.Log(ctx, level, "could not read the managers' message to an earlier agent", "error", err.Error())
		return errdefs.IsDataLoss(err)
	}
	t := s.read(m)
	s.mu.Lock()
	known := s.config.known
	if !known {
		s.config = t
	}
	s.mu.Unlock()
	if !known && len(t.secrets) > 0 {
		s.o.Resume()
	}
	return true
}

// readMemory returns the stored message. DataLoss if it cannot be read.
func readMemory(ctx context.Context, h core.Holder) (*swarmv1.SessionMessage, error) {
	files, err := h.Held(ctx, memoryName)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	st, err := files[0].Stat()
	if err == nil && st.Size() > maxMemory {
		err = fmt.Errorf("it has %d bytes", st.Size())
	}
	m := &swarmv1.SessionMessage{}
	if err == nil {
		data := make([]byte, st.Size())
		if _, err = files[0].ReadAt(data, 0); err == nil { // all holders of the file share its offset
			err = proto.Unmarshal(data, m)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrDataLoss)
	}
	return m, nil
}

// Clear removes all networks, which must have no sandbox any more, and the stored message.
func Clear(ctx context.Context, o Port, memory core.Holder) error {
	var errs []error
	if memory != nil {
		if err := memory.Drop(ctx, memoryName); !errdefs.IsFailedPrecondition(err) {
			errs = append(errs, err)
		}
	}
	if o != nil {
		errs = append(errs, o.CloseIngress(ctx))
		for _, n := range o.List() {
			errs = append(errs, o.Close(ctx, n.Name))
		}
	}
	return errors.Join(errs...)
}
