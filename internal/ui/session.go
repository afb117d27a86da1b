package ui

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"net"
	"net/http"
	"sync"
	"time"
)

// tags returns the entity tags of the built files.
var tags = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for _, name := range names() {
		data, err := fs.ReadFile(assets(), name)
		if err != nil {
			panic(err) // it is embedded
		}
		sum := sha256.Sum256(data)
		all[name] = `"` + hex.EncodeToString(sum[:12]) + `"`
	}
	return all
})

// sessions are the browsers that have sent the token. A session has two halves, and a request needs both: a cookie, which no script
// can read, and a key, which the browser gives to no server on another port of the machine, as it does with cookies.
type sessions struct {
	name string // of the cookie

	mu   sync.Mutex // guards open
	open map[string]session
}

type session struct {
	key  [sha256.Size]byte
	used time.Time
}

const (
	maxSessions = 64
	sessionTime = 12 * time.Hour // without a request
	maxTokenLen = 1 << 10
)

// newCookieName returns a name that no other page on this machine uses: cookies do not belong to a port.
func newCookieName() string { return "longshore-" + rand.Text()[:8] }

// userKey is the context key of a request's user.
type userKey struct{}

// userOf returns the name of a request's user for events: its address or its certificate's name.
func userOf(ctx context.Context) string {
	name, _ := ctx.Value(userKey{}).(string)
	return name
}

// login exchanges the token for a session.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(keyHeader) == "" { // only a script of the page can set it
		http.Error(w, "the header "+keyHeader+" is missing", http.StatusForbidden)
		return
	}
	sent, err := io.ReadAll(io.LimitReader(r.Body, maxTokenLen))
	if err != nil {
		http.Error(w, "read the token", http.StatusBadRequest)
		return
	}
	if s.o.Token != "" {
		got, want := sha256.Sum256(sent), sha256.Sum256([]byte(s.o.Token))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			if len(sent) > 0 { // a page without a token tries whether certificates suffice
				s.o.Logger.WarnContext(r.Context(), "refused a wrong token for the web page", "client", client(r))
			}
			http.Error(w, "the token is wrong", http.StatusUnauthorized)
			return
		}
	}
	id, key := s.sessions.begin(time.Now())
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // a page of this machine may be served without TLS
		Name: s.sessions.name, Value: id, Path: "/api/", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	})
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"key": key})
}

// logout ends the session of a request.
func (s *Server) logout(w http.ResponseWriter, r *http.Request) error {
	if c, err := r.Cookie(s.sessions.name); err == nil {
		s.sessions.end(c.Value)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// user returns the name of the user of a request, and whether it has a session.
func (s *Server) user(r *http.Request) (string, bool) {
	c, err := r.Cookie(s.sessions.name)
	if err != nil || !s.sessions.valid(c.Value, r.Header.Get(keyHeader), time.Now()) {
		return "", false
	}
	return "web page, " + client(r), true
}

// client names the other end of a request.
func client(r *http.Request) string {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return "certificate " + r.TLS.VerifiedChains[0][0].Subject.CommonName
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return "a unix socket"
}

// begin makes a session, in the place of the one that was idle for the longest if there are too many.
func (s *sessions) begin(now time.Time) (id, key string) {
	id, key = rand.Text(), rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[string]session{}
	}
	if len(s.open) >= maxSessions {
		oldest := ""
		for id, e := range s.open {
			if oldest == "" || e.used.Before(s.open[oldest].used) {
				oldest = id
			}
		}
		delete(s.open, oldest)
	}
	s.open[id] = session{sha256.Sum256([]byte(key)), now}
	return id, key
}

func (s *sessions) end(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, id)
}

// valid reports whether id and key are the halves of a session.
func (s *sessions) valid(id, key string, now time.Time) bool {
	sum := sha256.Sum256([]byte(key))
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.open[id]
	if !ok || subtle.ConstantTimeCompare(sum[:], e.key[:]) != 1 {
		return false
	}
	if now.Sub(e.used) > sessionTime {
		delete(s.open, id)
		return false
	}
	e.used = now
	s.open[id] = e
	return true
}
