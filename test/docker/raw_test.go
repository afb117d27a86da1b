package docker_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

// conversation is a raw connection to a side, with a transcript of its answers.
type conversation struct {
	s    *side
	conn *net.UnixConn
	in   *bufio.Reader
	text strings.Builder
}

// talk connects to a side.
func talk(s *side) *conversation {
	c := &conversation{s: s}
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		c.note("connect: %v", err)
		return c
	}
	c.conn = conn.(*net.UnixConn) //nolint:forcetypeassert // by the network's name
	_ = c.conn.SetDeadline(time.Now().Add(patience))
	c.in = bufio.NewReader(conn)
	return c
}

func (c *conversation) note(format string, args ...any) {
	fmt.Fprintf(&c.text, format+"\n", args...)
}

// request sends a request line, header lines and a body with its length.
func (c *conversation) request(do string, lines []string, body string) {
	if c.conn == nil {
		return
	}
	method, target := c.s.target(do)
	text := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: docker\r\n", method, target)
	for _, l := range lines {
		text += l + "\r\n"
	}
	if body != "" {
		text += "Content-Type: application/json\r\n"
	}
	text += fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
	c.send(text)
}

func (c *conversation) send(text string) {
	if c.conn == nil {
		return
	}
	if _, err := io.WriteString(c.conn, text); err != nil {
		c.note("send: %v", err)
	}
}

// answer reads the status line and the header of an answer.
func (c *conversation) answer() {
	if c.conn == nil {
		return
	}
	first, err := c.in.ReadString('\n')
	c.note("%s", strings.TrimSpace(first))
	var lines []string
	for err == nil {
		var line string
		line, err = c.in.ReadString('\n')
		line = strings.TrimSpace(line)
		if line == "" {
			break
		}
		key, _, _ := strings.Cut(line, ":")
		if slices.Contains([]string{"Content-Type", "Connection", "Upgrade", "Transfer-Encoding"}, http.CanonicalHeaderKey(key)) {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	for _, l := range lines {
		c.note("%s", l)
	}
	if err != nil {
		c.note("answer: %v", err)
	}
}

// rest reads to the end of the connection.
func (c *conversation) rest() []byte {
	if c.conn == nil {
		return nil
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(patience / 4))
	all, err := io.ReadAll(c.in)
	if os.IsTimeout(err) {
		c.note("the connection stays open")
	} else if err != nil {
		c.note("read: %v", err)
	}
	return all
}

// framed reads the rest as frames.
func (c *conversation) framed() { c.note("%s", frames(c.rest())) }

// raw reads the rest as text.
func (c *conversation) raw() { c.note("%q", c.rest()) }

// next reads as many bytes as the text has.
func (c *conversation) next(n int) {
	if c.conn == nil {
		return
	}
	b := make([]byte, n)
	k, err := io.ReadFull(c.in, b)
	c.note("%q", b[:k])
	if err != nil {
		c.note("read: %v", err)
	}
}

// endInput closes the client's direction only.
func (c *conversation) endInput() {
	if c.conn != nil {
		_ = c.conn.CloseWrite()
	}
}

func (c *conversation) end() string {
	if c.conn != nil {
		_ = c.conn.Close()
	}
	return c.text.String()
}

// pathStat decodes the header of an archive's path, without the time.
func pathStat(text string) string {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "no base64: " + text
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		return "no JSON: " + string(data)
	}
	if _, ok := m["mtime"].(string); ok {
		m["mtime"] = "TIME"
	}
	plain, _ := json.Marshal(m) // as decoded
	return string(plain)
}
