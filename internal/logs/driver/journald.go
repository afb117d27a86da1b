package driver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// journalSocket is the socket of journald's native protocol.
const journalSocket = "/run/systemd/journal/socket"

// journald sends messages to systemd's journal: a datagram for each, or a file for one that is too large.
type journald struct {
	to   target
	head []byte // the fields of all messages
	conn net.Conn
}

func parseJournald(*options) (func(Source, string) (Sender, error), error) {
	return func(s Source, tag string) (Sender, error) {
		return &journald{to: target{network: "unixgram", address: journalSocket}, head: journalHead(s, tag)}, nil
	}, nil
}

// journalHead returns the fields of a container, as docker's driver has them. An attribute does not replace one of them.
func journalHead(s Source, tag string) []byte {
	own := map[string]string{
		"CONTAINER_ID": short(s.ID), "CONTAINER_ID_FULL": s.ID, "CONTAINER_NAME": s.Name, "CONTAINER_TAG": tag, "IMAGE_NAME": s.Image, "SYSLOG_IDENTIFIER": tag,
	}
	for _, k := range slices.Sorted(maps.Keys(s.Attributes)) {
		name := fieldName(k)
		_, used := own[name]
		if name == "" || used || name == "MESSAGE" || name == "PRIORITY" || name == "SYSLOG_TIMESTAMP" || strings.HasPrefix(name, "CONTAINER_PARTIAL_") {
			continue
		}
		own[name] = s.Attributes[k]
	}
	var b []byte
	for _, k := range slices.Sorted(maps.Keys(own)) {
		b = appendField(b, k, own[k])
	}
	return b
}

// fieldName returns the name of a field for an attribute: capital letters, digits and underscores, and at first a letter.
func fieldName(key string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, key)
	name = strings.TrimLeft(name, "_0123456789")
	return name[:min(len(name), 64)]
}

// appendField appends a field in the protocol's form: with its length, if the value has several lines.
func appendField[T string | []byte](b []byte, name string, value T) []byte {
	b = append(b, name...)
	if !strings.Contains(string(value), "\n") {
		b = append(b, '=')
	} else {
		b = binary.LittleEndian.AppendUint64(append(b, '\n'), uint64(len(value)))
	}
	return append(append(b, value...), '\n')
}

func (j *journald) entry(b []byte, m *Message) []byte {
	b = append(b, j.head...)
	priority := severityInfo
	if m.Stderr {
		priority = severityErr
	}
	b = appendField(b, "PRIORITY", strconv.Itoa(priority))
	b = appendField(b, "SYSLOG_TIMESTAMP", m.At.UTC().Format(time.RFC3339Nano))
	if p := m.Part; p != nil {
		b = appendField(b, "CONTAINER_PARTIAL_MESSAGE", "true")
		b = appendField(b, "CONTAINER_PARTIAL_ID", p.ID)
		b = appendField(b, "CONTAINER_PARTIAL_ORDINAL", strconv.Itoa(p.Ordinal))
		b = appendField(b, "CONTAINER_PARTIAL_LAST", strconv.FormatBool(p.Last))
	}
	return appendField(b, "MESSAGE", m.Text)
}

// Send implements Sender. A message counts as accepted when it is in the queue of the socket, which systemd holds.
func (j *journald) Send(ctx context.Context, list []Message) error {
	err := j.send(ctx, list)
	if err != nil {
		err = errors.Join(fmt.Errorf("journald: %w", err), j.Close())
	}
	return err
}

func (j *journald) send(ctx context.Context, list []Message) error {
	if j.conn == nil {
		conn, err := j.to.dial(ctx)
		if err != nil {
			return err
		}
		j.conn = conn
	}
	b, release := buffer()
	defer func() { release(b) }()
	for i := range list {
		b = j.entry(b[:0], &list[i])
		err := writeOnce(ctx, j.conn, b)
		if errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.ENOBUFS) {
			err = j.sendFile(b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sendFile sends an entry in a sealed file in memory.
func (j *journald) sendFile(b []byte) error {
	fd, err := unix.MemfdCreate("log-entry", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "log-entry")
	defer func() { _ = f.Close() }()
	if _, err := f.Write(b); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL); err != nil {
		return os.NewSyscallError("seal", err)
	}
	c, ok := j.conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("%T passes no descriptors", j.conn)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	// The datagram is empty, which the net package does not send.
	werr := raw.Write(func(s uintptr) bool {
		err = unix.Sendmsg(int(s), nil, unix.UnixRights(fd), nil, unix.MSG_NOSIGNAL)
		return !errors.Is(err, unix.EAGAIN)
	})
	return errors.Join(werr, os.NewSyscallError("sendmsg", err))
}

// Close implements Sender.
func (j *journald) Close() error {
	if j.conn == nil {
		return nil
	}
	err := j.conn.Close()
	j.conn = nil
	return err
}
