package splice

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
)

// The bounds of a request's head.
const (
	maxLine = 8 << 10
	maxHead = 16 << 10
)

// The reasons to refuse a connection at port 80.
var (
	errNotHTTP  = errors.New("it does not begin with a request of HTTP/1")
	errNoHost   = errors.New("the request has no Host header, or several")
	errTwoHosts = errors.New("the request's target and its Host header differ")
	errLongHead = errors.New("the head of the request is too long")
	errRequest  = errors.New("the request is malformed")
	errUpgrade  = errors.New("the request changes the protocol")
)

// head is the beginning of a request, up to its body.
type head struct {
	raw     []byte
	host    string
	length  int64 // of the body
	chunked bool
}

// readHead reads a request up to its body. It refuses a head that servers read in different ways: one of them could find another
// request in it. The reader's buffer has maxLine bytes. The error is io.EOF at the end of the connection.
func readHead(r *bufio.Reader) (h head, err error) {
	method, target, version, err := h.request(r)
	if err != nil {
		return h, err
	}
	authority, err := authorityOf(method, target)
	if err != nil {
		return h, err
	}
	hosts, lengths, codings := 0, 0, 0
	for {
		line, err := h.line(r)
		if err != nil {
			return h, unexpected(err)
		}
		if len(line) == 0 {
			break
		}
		name, value, ok := strings.Cut(string(line), ":")
		if !ok || !isToken(name) {
			return h, errRequest
		}
		value = strings.Trim(value, " \t")
		switch strings.ToLower(name) {
		case "host":
			hosts++
			h.host, ok = hostOf(value)
		case "content-length":
			lengths++
			h.length, ok = number(value, 10)
		case "transfer-encoding":
			codings++
			h.chunked, ok = true, strings.EqualFold(value, "chunked") && version == "HTTP/1.1"
		case "upgrade", "http2-settings":
			return h, errUpgrade
		}
		if !ok {
			return h, errRequest
		}
	}
	switch {
	case hosts != 1:
		return h, errNoHost
	case lengths+codings > 1:
		return h, errRequest
	case authority != "":
		if other, ok := hostOf(authority); !ok || other != h.host {
			return h, errTwoHosts
		}
	}
	return h, nil
}

// request reads the first line.
func (h *head) request(r *bufio.Reader) (method, target, version string, err error) {
	line, err := h.line(r)
	if err != nil {
		return "", "", "", err
	}
	parts := strings.Split(string(line), " ")
	if len(parts) != 3 || !isToken(parts[0]) || parts[1] == "" || parts[2] != "HTTP/1.1" && parts[2] != "HTTP/1.0" {
		return "", "", "", errNotHTTP
	}
	return parts[0], parts[1], parts[2], nil
}

// authorityOf returns the host and port in a target of absolute form; "" for another form.
func authorityOf(method, target string) (string, error) {
	if method == "CONNECT" {
		return "", errUpgrade
	}
	if target[0] == '/' || target == "*" {
		return "", nil
	}
	const scheme = "http://"
	if len(target) <= len(scheme) || !strings.EqualFold(target[:len(scheme)], scheme) {
		return "", errRequest
	}
	authority := target[len(scheme):]
	if i := strings.IndexAny(authority, "/?#"); i >= 0 {
		authority = authority[:i]
	}
	if authority == "" || strings.Contains(authority, "@") {
		return "", errRequest
	}
	return authority, nil
}

// line reads one line, which ends in CRLF, and returns it without that. It has no other control characters than tabs.
func (h *head) line(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull) || len(h.raw)+len(line) > maxHead:
		return nil, errLongHead
	case err != nil && len(line) > 0:
		return nil, unexpected(err)
	case err != nil:
		return nil, err
	}
	h.raw = append(h.raw, line...)
	line, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok || bytes.ContainsFunc(line, func(c rune) bool { return c < ' ' && c != '\t' || c == 127 }) {
		return nil, errRequest
	}
	return line, nil
}

// unexpected turns the end of a connection into an error.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// hostOf returns the name in a Host header, in lower case, without its port and a final dot.
func hostOf(value string) (string, bool) {
	name, port, has := strings.Cut(value, ":")
	if _, ok := number(port, 10); has && port != "" && !ok {
		return "", false
	}
	return strings.TrimSuffix(strings.ToLower(name), "."), name != ""
}

// number reads digits only.
func number(s string, base int) (int64, bool) {
	if s == "" || len(s) > 15 || strings.ContainsAny(s, "+-_") {
		return 0, false
	}
	n, err := strconv.ParseInt(s, base, 64)
	return n, err == nil
}

// body copies the body of a request.
func (h *head) body(w io.Writer, r *bufio.Reader) error {
	if !h.chunked {
		_, err := io.CopyN(w, r, h.length)
		return unexpected(err)
	}
	for {
		size, err := h.chunk(w, r)
		if err != nil {
			return unexpected(err)
		}
		if size == 0 {
			return unexpected(h.trailer(w, r))
		}
		if _, err := io.CopyN(w, r, size); err != nil {
			return unexpected(err)
		}
		end := head{}
		if line, err := end.line(r); err != nil || len(line) > 0 {
			return errRequest
		}
		if _, err := w.Write(end.raw); err != nil {
			return err
		}
	}
}

// chunk copies the line before a chunk.
func (h *head) chunk(w io.Writer, r *bufio.Reader) (int64, error) {
	one := head{}
	line, err := one.line(r)
	if err != nil {
		return 0, err
	}
	digits, _, _ := strings.Cut(string(line), ";")
	size, ok := number(strings.TrimRight(digits, " \t"), 16)
	if !ok {
		return 0, errRequest
	}
	_, err = w.Write(one.raw)
	return size, err
}

// trailer copies the lines after the last chunk.
func (h *head) trailer(w io.Writer, r *bufio.Reader) error {
	lines := head{}
	for {
		line, err := lines.line(r)
		if err != nil {
			return err
		}
		if len(line) == 0 {
			_, err := w.Write(lines.raw)
			return err
		}
		if name, _, ok := strings.Cut(string(line), ":"); !ok || !isToken(name) {
			return errRequest
		}
	}
}
