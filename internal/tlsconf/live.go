package tlsconf

import (
	"crypto/tls"
	"os"
	"slices"
	"sync"
)

// Live is a listener's config that follows its files: each handshake uses their present content. While files cannot be read, the last
// content that could be read stays in use.
type Live struct {
	files  Files
	failed func(error)

	mu    sync.Mutex // guards seen, conf
	seen  []os.FileInfo
	conf  *tls.Config
	serve *tls.Config
}

// Live reads the files, as Server does, and follows them. failed is called once for each change that cannot be read.
func (f Files) Live(failed func(error)) (*Live, error) {
	l := &Live{files: f, failed: failed, seen: f.look()}
	var err error
	if l.conf, err = l.read(); err != nil {
		return nil, err
	}
	l.serve = &tls.Config{
		MinVersion: l.conf.MinVersion, NextProtos: l.conf.NextProtos,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return l.current(), nil },
	}
	return l, nil
}

// Config returns the config for the listener.
func (l *Live) Config() *tls.Config { return l.serve }

// HasName reports whether the present certificate is valid for a name or an address.
func (l *Live) HasName(host string) bool {
	leaf := l.current().Certificates[0].Leaf
	return leaf != nil && leaf.VerifyHostname(host) == nil
}

// read reads the files. Sessions are not resumed, because a client would keep its access after a change of the authorities.
func (l *Live) read() (*tls.Config, error) {
	conf, err := l.files.Server()
	if err == nil {
		conf.SessionTicketsDisabled = true
	}
	return conf, err
}

// current returns the config of the files, which it reads again if they have changed.
func (l *Live) current() *tls.Config {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.files.look()
	if slices.EqualFunc(now, l.seen, equal) {
		return l.conf
	}
	l.seen = now
	if conf, err := l.read(); err == nil {
		l.conf = conf
	} else if l.failed != nil {
		l.failed(err)
	}
	return l.conf
}

// look returns the attributes of the files, nil for one that is missing.
func (f Files) look() (list []os.FileInfo) {
	for _, path := range []string{f.Cert, f.Key, f.ClientCA} {
		info, err := os.Stat(path)
		if err != nil {
			info = nil
		}
		list = append(list, info)
	}
	return list
}

// equal reports whether a file is the same and was not written in between.
func equal(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}
