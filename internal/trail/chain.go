package trail

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// chain is a place in the trail: the number and the hash of the line before.
type chain struct {
	seq  uint64
	hash string // "" before the first line
}

// A line is {"hash":"…","seq":…}: the hash is over that of the line before and the object without "hash", as it is written.
const (
	hashKey = `{"hash":"`
	hashEnd = `",`
)

// seal returns the line of a record, and moves c behind it.
func (c *chain) seal(r *Record) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	c.seq, c.hash = r.Seq, digest(c.hash, body)
	line := make([]byte, 0, len(hashKey)+len(c.hash)+len(hashEnd)+len(body))
	line = append(line, hashKey...)
	line = append(line, c.hash...)
	line = append(line, hashEnd...)
	return append(append(line, body[1:]...), '\n'), nil
}

func digest(before string, body []byte) string {
	h := sha256.New()
	_, _ = h.Write([]byte(before))
	_, _ = h.Write(body)
	return hex.EncodeToString(h.Sum(nil))
}

// split returns the hash of a line, and the object that it is over.
func split(line []byte) (hash string, body []byte, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(hashKey))
	if !ok || len(rest) < 2*sha256.Size+len(hashEnd) {
		return "", nil, false
	}
	hash, rest = string(rest[:2*sha256.Size]), rest[2*sha256.Size:]
	rest, ok = bytes.CutPrefix(rest, []byte(hashEnd))
	return hash, append([]byte("{"), rest...), ok
}

// marshal is the content of the file audit.head. It always has the same length.
func (c chain) marshal() []byte { return fmt.Appendf(nil, "%20d %64s\n", c.seq, c.hash) }

func readHead(path string) (c chain, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	seq, hash, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
	if c.seq, err = strconv.ParseUint(seq, 10, 64); err != nil {
		return c, fmt.Errorf("%s is none of a trail", path)
	}
	c.hash = strings.TrimSpace(hash)
	return c, nil
}

// Verifier checks the lines of a trail, one after the other, from its oldest one.
type Verifier struct {
	at    chain
	begun bool
}

// ErrBroken is wrapped by the errors about lines that were changed or removed.
var ErrBroken = errors.New("the audit trail was changed")

// Line checks the next line, and returns its record.
func (v *Verifier) Line(line []byte) (r Record, err error) {
	hash, body, ok := split(line)
	if !ok {
		return r, fmt.Errorf("%w: the line after %d is none of a trail", ErrBroken, v.at.seq)
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return r, fmt.Errorf("%w: the line after %d: %w", ErrBroken, v.at.seq, err)
	}
	before := v.at
	if !v.begun { // older files may be gone: the first line of each file has the hash before
		before = chain{r.Seq - 1, r.Prev}
	}
	v.begun = true
	switch {
	case r.Seq == 0 || r.Seq != before.seq+1:
		return r, fmt.Errorf("%w: line %d follows line %d", ErrBroken, r.Seq, before.seq)
	case digest(before.hash, body) != hash:
		return r, fmt.Errorf("%w: line %d, or the one before it, is not as it was written", ErrBroken, r.Seq)
	}
	v.at = chain{r.Seq, hash}
	return r, nil
}

// Seq returns the number of the last line that was checked.
func (v *Verifier) Seq() uint64 { return v.at.seq }
