package dockerhttp

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

func muxOf() *Mux {
	m := &Mux{Versions: Range{MustParse("1.24"), MustParse("1.51")}}
	for _, p := range []string{
		"GET /images/json", "GET /images/{name...}/json", "GET /images/{name...}/get", "GET /images/get", "DELETE /images/{name...}",
		"GET /containers/json", "GET /containers/{id...}/json", "POST /containers/create", "POST /containers/{id...}/start", "GET /exec/{id}/json",
	} {
		method, pattern, _ := strings.Cut(p, " ")
		m.Handle(method, pattern, func(w http.ResponseWriter, r *Request) error {
			return Reply(w, http.StatusOK, fmt.Sprintf("%s %v %v", r.Route, r.Vars, r.API))
		})
	}
	m.Handle("GET", "/refused", func(http.ResponseWriter, *Request) error {
		return fmt.Errorf("start <a>: %w", errdefs.ErrFailedPrecondition)
	})
	m.Handle("POST", "/same", func(http.ResponseWriter, *Request) error { return ErrNotModified })
	m.HandleSince("1.42", "PUT", "/volumes/{name}", func(w http.ResponseWriter, _ *Request) error { return Reply(w, http.StatusOK, nil) })
	return m
}

func ask(h http.Handler, method, target string, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestRoutes(t *testing.T) {
	m := muxOf()
	for _, c := range []struct{ method, path, want string }{
		{"GET", "/images/json", `"GET /images/json map[] 1.51"`},
		{"GET", "/v1.40/images/json", `"GET /images/json map[] 1.40"`},
		{"GET", "/images/a/b:c/json", `"GET /images/{name...}/json map[name:a/b:c] 1.51"`},
		{"GET", "/images/a%2Fb/json", `"GET /images/{name...}/json map[name:a/b] 1.51"`},
		{"GET", "/images/json/json", `"GET /images/{name...}/json map[name:json] 1.51"`},
		{"DELETE", "/images/a/b", `"DELETE /images/{name...} map[name:a/b] 1.51"`},
		{"GET", "/containers//web/json", `"GET /containers/{id...}/json map[id:/web] 1.51"`},
		{"POST", "/containers/create", `"POST /containers/create map[] 1.51"`},
		{"GET", "/v1.51/exec/x/json", `"GET /exec/{id}/json map[id:x] 1.51"`},
		{"GET", "/exec/x/y/json", `{"message":"page not found"}`},
		{"GET", "/containers//json", `{"message":"page not found"}`},
		{"PUT", "/images/json", `{"message":"page not found"}`},
		{"GET", "/v1.51//images/json", `{"message":"page not found"}`},
		{"GET", "/v1.x/images/json", `{"message":"page not found"}`},
		{"GET", "/v1.52/images/json", `{"message":"client version 1.52 is too new. Maximum supported API version is 1.51"}`},
		{"GET", "/v1.23/images/json", "client version 1.23 is too old. Minimum supported API version is 1.24, please upgrade your client to a newer version"},
		{"PUT", "/v1.41/volumes/x", `{"message":"/volumes/x requires minimum API version 1.42, but the Docker daemon API version is 1.41"}`},
		{"GET", "/refused", `{"message":"start <a>"}`},
		{"OPTIONS", "/whatever", ""},
	} {
		w := ask(m, c.method, c.path, "")
		if got := strings.TrimSpace(w.Body.String()); got != c.want {
			t.Errorf("%s %s: %d %s, want %s", c.method, c.path, w.Code, got, c.want)
		}
		if w.Header().Get("Api-Version") != "1.51" || w.Header().Get("Ostype") != "linux" {
			t.Errorf("%s %s: headers %v", c.method, c.path, w.Header())
		}
	}
	if w := ask(m, "POST", "/same", ""); w.Code != http.StatusNotModified || w.Body.Len() > 0 {
		t.Errorf("not modified: %d %q", w.Code, w.Body)
	}
	if w := ask(m, "GET", "/refused", ""); w.Code != http.StatusConflict || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("refused: %d %v", w.Code, w.Header())
	}
	m.Admit = func(*Request) error { return errdefs.ErrPermissionDenied.WithMessage("no") }
	if w := ask(m, "GET", "/images/json", ""); w.Code != http.StatusForbidden {
		t.Errorf("not admitted: %d", w.Code)
	}
}

func TestStatuses(t *testing.T) {
	for err, want := range map[error]int{
		errdefs.ErrInvalidArgument: 400, errdefs.ErrNotFound: 404, errdefs.ErrAlreadyExists: 409, errdefs.ErrFailedPrecondition: 409, errdefs.ErrAborted: 409,
		errdefs.ErrUnauthenticated: 401, errdefs.ErrPermissionDenied: 403, errdefs.ErrNotImplemented: 501, errdefs.ErrUnavailable: 503, errors.New("x"): 500,
	} {
		if got := Status(fmt.Errorf("a: %w", err)); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
	if got := Text(fmt.Errorf("find x: %w", errdefs.ErrNotFound)); got != "find x" {
		t.Errorf("text %q", got)
	}
	if got := Text(errdefs.ErrInvalidArgument.WithMessage("exec x: permission denied")); got != "exec x: permission denied" {
		t.Errorf("the kernel's words: %q", got)
	}
}

func TestBodies(t *testing.T) {
	type doc struct{ A int }
	for _, c := range []struct{ kind, body, want string }{
		{"application/json", `{"A":1,"B":2}`, ""},
		{"application/json; charset=utf-8", `{"A":1}`, ""},
		{"", "", ""},
		{"text/plain", `{"A":1}`, "unsupported Content-Type header (text/plain): must be 'application/json'"},
		{"", `{"A":1}`, "malformed Content-Type header ()"},
		{"application/json", `{"A":1}{}`, "unexpected content after JSON"},
		{"application/json", `{"A":"x"}`, "invalid JSON"},
	} {
		in := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(c.body))
		in.Header.Set("Content-Type", c.kind)
		var d doc
		err := (&Request{Request: in}).Decode(&d)
		switch {
		case c.want == "" && (err != nil || c.body != "" && d.A != 1):
			t.Errorf("%q %q: %v %v", c.kind, c.body, d, err)
		case c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want) || !errdefs.IsInvalidArgument(err)):
			t.Errorf("%q %q: %v", c.kind, c.body, err)
		}
	}
}

func TestFilters(t *testing.T) {
	for text, want := range map[string]string{
		"": "map[]", "null": "map[]", `{"a":{"x":true,"y":false}}`: "map[a:map[x:true y:false]]", `{"a":["x"]}`: "map[a:map[x:true]]",
	} {
		f, err := ParseFilters(text, "a")
		if got := fmt.Sprint(map[string]map[string]bool(f)); got != want || err != nil {
			t.Errorf("%s: %s %v", text, got, err)
		}
	}
	for text, want := range map[string]string{`{"b":["x"]}`: "invalid filter 'b'", `{`: "invalid filter:", `{"a":1}`: "invalid filter:"} {
		if _, err := ParseFilters(text, "a"); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	f, _ := ParseFilters(`{"name":["^we"],"label":["a=b"],"label!":["c"],"yes":["1"],"both":["1","false"],"odd":["maybe"]}`, "name", "label", "label!", "yes", "both", "odd")
	if !f.Match("name", "db", "web") || f.Match("name", "db") || !f.Match("none", "db") {
		t.Error("names")
	}
	if !f.Labels(map[string]string{"a": "b"}) || f.Labels(map[string]string{"a": "b", "c": ""}) || f.Labels(map[string]string{"a": "c"}) {
		t.Error("labels")
	}
	if v, set, err := f.Bool("yes"); !v || !set || err != nil {
		t.Error("yes", v, set, err)
	}
	for _, key := range []string{"both", "odd"} {
		if _, _, err := f.Bool(key); !errdefs.IsInvalidArgument(err) {
			t.Error(key, err)
		}
	}
}

func TestAuth(t *testing.T) {
	const doc = `{"username":"u","password":"p>?","serveraddress":"r"}`
	for _, enc := range []*base64.Encoding{base64.URLEncoding, base64.StdEncoding, base64.RawURLEncoding, base64.RawStdEncoding} {
		if c, err := ParseAuth(enc.EncodeToString([]byte(doc))); err != nil || c.Password != "p>?" {
			t.Errorf("%+v %v", c, err)
		}
	}
	both := base64.StdEncoding.EncodeToString([]byte("a:b:c"))
	if c, err := ParseAuth(base64.URLEncoding.EncodeToString([]byte(`{"auth":"` + both + `"}`))); err != nil || c.Username != "a" || c.Password != "b:c" {
		t.Errorf("%+v %v", c, err)
	}
	if _, err := ParseAuth("%%secret"); !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

// TestHijack sends the requests of clients: with an upgrade and without, each with input directly after the body.
func TestHijack(t *testing.T) {
	m := &Mux{Versions: Range{MustParse("1.24"), MustParse("1.51")}}
	m.Handle("POST", "/echo", func(w http.ResponseWriter, r *Request) error {
		var body struct{ Tty bool }
		if err := r.Decode(&body); err != nil {
			return err
		}
		c, err := r.Hijack(w, r.MediaType(body.Tty))
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		in, _ := io.ReadAll(c) // until the client ends its half
		if err := c.Context().Err(); err != nil {
			t.Errorf("after the end of the client's input: %v", err)
		}
		f := Frames{To: c, Raw: body.Tty}
		_ = f.Write(Stdout, in)
		_ = c.CloseWrite()
		return nil
	})
	s := httptest.NewServer(m)
	defer s.Close()
	for _, c := range []struct{ path, upgrade, body, status, media, want string }{
		{"/echo", "Connection: Upgrade\r\nUpgrade: tcp\r\n", `{"Tty":false}`, "101 UPGRADED", MultiplexedStream, "\x01\x00\x00\x00\x00\x00\x00\x02hi"},
		{"/v1.41/echo", "Connection: Upgrade\r\nUpgrade: tcp\r\n", `{"Tty":false}`, "101 UPGRADED", RawStream, "\x01\x00\x00\x00\x00\x00\x00\x02hi"},
		{"/echo", "Connection: Upgrade\r\nUpgrade: tcp\r\n", `{"Tty":true}`, "101 UPGRADED", RawStream, "hi"},
		{"/echo", "", `{"Tty":true}`, "200 OK", RawStream, "hi"},
	} {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		// LF line ends, as Jenkins sends them.
		_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\nHost: x\nContent-Type: application/json\n%sContent-Length: %d\n\n%shi", c.path, c.upgrade, len(c.body), c.body)
		_ = conn.(*net.TCPConn).CloseWrite()
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		var rest []byte
		if resp.StatusCode == http.StatusOK {
			rest, _ = io.ReadAll(resp.Body)
		} else {
			rest, _ = io.ReadAll(in)
		}
		_ = conn.Close()
		if resp.Status != c.status || resp.Header.Get("Content-Type") != c.media || string(rest) != c.want || resp.Header.Get("Api-Version") != "1.51" {
			t.Errorf("%+v: %s %v %q", c, resp.Status, resp.Header, rest)
		}
	}
}

// TestHijackDropsTheBody: a body is not the process's input, and a large one is refused.
func TestHijackDropsTheBody(t *testing.T) {
	m := &Mux{Versions: Range{MustParse("1.24"), MustParse("1.51")}}
	m.Handle(http.MethodPost, "/attach", func(w http.ResponseWriter, r *Request) error {
		c, err := r.Hijack(w, RawStream)
		if err != nil {
			return err
		}
		_, _ = io.Copy(c, c)
		return c.Close()
	})
	s := httptest.NewServer(m)
	defer s.Close()
	for length, want := range map[int]string{0: "101", 15: "101", maxDropped: "101", maxDropped + 1: "400"} {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(conn, "POST /attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: %d\r\n\r\n", length)
		if want == "101" {
			_, _ = io.WriteString(conn, strings.Repeat("b", length)+"input")
			_ = conn.(*net.TCPConn).CloseWrite()
		}
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(resp.Status, want) {
			t.Errorf("a body of %d bytes: %s", length, resp.Status)
		}
		if want == "101" {
			if got, _ := io.ReadAll(in); string(got) != "input" {
				t.Errorf("a body of %d bytes: %d bytes of input", length, len(got))
			}
		}
		_ = conn.Close()
	}
}

// TestHijackWaitsForTheHeader: a client that reads the header through a buffer must not find output in it.
func TestHijackWaitsForTheHeader(t *testing.T) {
	var reads atomic.Bool
	m := &Mux{Versions: Range{MustParse("1.24"), MustParse("1.51")}}
	m.Handle(http.MethodPost, "/attach", func(w http.ResponseWriter, r *Request) error {
		c, err := r.Hijack(w, RawStream)
		if err != nil {
			return err
		}
		if !reads.Load() {
			t.Error("output before the client has read the header")
		}
		_, _ = io.WriteString(c, "output")
		return c.Close()
	})
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(m)
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	defer s.Close()
	for range 20 {
		reads.Store(false)
		conn, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "POST /attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n")
		// The client sees that bytes have come before it reads them.
		raw, err := conn.(*net.UnixConn).SyscallConn()
		if err == nil {
			err = raw.Read(func(fd uintptr) bool {
				fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				n, perr := unix.Poll(fds, 0)
				return n > 0 || perr != nil
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		reads.Store(true)
		head := make([]byte, 4096)
		n, _ := conn.Read(head)
		rest, _ := io.ReadAll(conn)
		_ = conn.Close()
		if !strings.HasSuffix(string(head[:n]), "\r\n\r\n") || string(rest) != "output" {
			t.Fatalf("first %q, then %q", head[:n], rest)
		}
	}
}

func TestStream(t *testing.T) {
	w := httptest.NewRecorder()
	s := NewStream(w)
	if s.Began() {
		t.Error("it began without output")
	}
	_ = s.Send(map[string]string{"status": "a<b"})
	s.Fail(errdefs.ErrNotFound.WithMessage("gone"))
	want := "{\"status\":\"a<b\"}\r\n{\"error\":\"gone\",\"errorDetail\":{\"message\":\"gone\"}}\r\n"
	if w.Body.String() != want || !w.Flushed {
		t.Errorf("%q", w.Body)
	}
}

func TestMoments(t *testing.T) {
	for text, want := range map[string]string{"1": "1970-01-01T00:00:01Z", "1.5": "1970-01-01T00:00:01.5Z", "2024-01-02T03:04:05.6Z": "2024-01-02T03:04:05.6Z", "0": "0001-01-01T00:00:00Z"} {
		at, err := Moment("since", text)
		if got := at.UTC().Format("2006-01-02T15:04:05.999999999Z07:00"); got != want || err != nil {
			t.Errorf("%s: %s %v", text, got, err)
		}
	}
	for _, text := range []string{"x", "1.x", "-1", "99999999999999999999"} {
		if _, err := Moment("since", text); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func FuzzRequests(f *testing.F) {
	f.Add("/v1.51/images/a/b/json", `{"label":["a=b"]}`, "eyJ1c2VybmFtZSI6ICJ1In0=", "1.5")
	f.Add("//%2e/containers//x/json", `{"name":{"[":true}}`, "", "2024-01-02T03:04:05Z")
	f.Fuzz(func(t *testing.T, path, filters, auth, moment string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.URL.Path = path
		w := httptest.NewRecorder()
		muxOf().ServeHTTP(w, r)
		if !slices.Contains([]int{200, 400, 404, 409}, w.Code) {
			t.Errorf("%q: %d", path, w.Code)
		}
		if fs, err := ParseFilters(filters, "label", "name"); err == nil {
			fs.Labels(map[string]string{"a": "b"})
			fs.Match("name", "a")
			for k := range fs {
				if k != "label" && k != "name" {
					t.Errorf("an unknown key %q", k)
				}
			}
		}
		if c, err := ParseAuth(auth); err != nil && c != (Credentials{}) {
			t.Errorf("credentials %+v with an error", c)
		}
		_, _ = Moment("since", moment)
	})
}
