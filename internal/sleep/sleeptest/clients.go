package sleeptest

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// wire is a connection with one request at a time.
type wire struct {
	net.Conn
	r *bufio.Reader
}

func dial(ctx context.Context, addr string) (*wire, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &wire{c, bufio.NewReaderSize(c, 1<<16)}, nil
}

// until has the connection's calls end with ctx.
func (w *wire) until(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = w.SetDeadline(time.Unix(1, 0)) })
}

// httpClient makes requests for paths. The sum is over the answers of all paths but the first, or of that if there is no other.
type httpClient struct {
	*wire
	paths []string
}

func dialHTTP(paths ...string) func(ctx context.Context, addr string) (Client, error) {
	return func(ctx context.Context, addr string) (Client, error) {
		w, err := dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		return &httpClient{w, paths}, nil
	}
}

func (c *httpClient) get(ctx context.Context, path string) ([]byte, error) {
	defer c.until(ctx)()
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: sleeper\r\n\r\n", path); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, b)
	}
	return b, err
}

// One implements Client.
func (c *httpClient) One(ctx context.Context) error {
	_, err := c.get(ctx, c.paths[0])
	return err
}

// Sum implements Client.
func (c *httpClient) Sum(ctx context.Context) (string, error) {
	h := sha256.New()
	for _, path := range c.paths[1:] {
		b, err := c.get(ctx, path)
		if err != nil {
			return "", err
		}
		h.Write(b)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// redisClient speaks RESP.
type redisClient struct{ *wire }

func dialRedis(ctx context.Context, addr string) (Client, error) {
	w, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return redisClient{w}, nil
}

func (c redisClient) call(ctx context.Context, words ...string) (string, error) {
	defer c.until(ctx)()
	if _, err := fmt.Fprintf(c, "%s\r\n", strings.Join(words, " ")); err != nil {
		return "", err
	}
	line, err := c.r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	if n, ok := strings.CutPrefix(line, "$"); ok && n != "-1" {
		size, err := strconv.Atoi(n)
		if err != nil {
			return "", err
		}
		b := make([]byte, size+2)
		_, err = io.ReadFull(c.r, b)
		return string(b[:size]), err
	}
	if strings.HasPrefix(line, "-") {
		return "", errors.New(line)
	}
	return line, nil
}

func (c redisClient) One(ctx context.Context) error {
	_, err := c.call(ctx, "GET", "key:1234")
	return err
}

func (c redisClient) Sum(ctx context.Context) (string, error) { return c.call(ctx, "DEBUG", "DIGEST") }

// redisValue is the size of a value in Redis.
const redisValue = 1000

func fillRedis(ctx context.Context, c Client, mib int) error {
	r, ok := c.(redisClient)
	if !ok {
		return errors.New("another client")
	}
	_, err := r.call(ctx, "DEBUG", "POPULATE", strconv.Itoa(mib<<20/(redisValue+150)), "key", strconv.Itoa(redisValue))
	return err
}

// postgresClient speaks version 3 of PostgreSQL's protocol, with simple queries only.
type postgresClient struct{ *wire }

func dialPostgres(ctx context.Context, addr string) (Client, error) {
	w, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c := postgresClient{w}
	defer w.until(ctx)()
	const version3 = 3 << 16
	b := binary.BigEndian.AppendUint32(nil, version3)
	b = append(b, "user\x00user\x00database\x00postgres\x00\x00"...)
	b = append(binary.BigEndian.AppendUint32(nil, uint32(len(b)+4)), b...)
	if _, err = c.Write(b); err == nil {
		_, err = c.answer()
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return c, nil
}

// answer reads messages until the server is ready for the next query, and returns the first value of the last row.
func (c postgresClient) answer() (value string, err error) {
	for {
		var head [5]byte
		if _, err2 := io.ReadFull(c.r, head[:]); err2 != nil {
			return "", errors.Join(err, err2)
		}
		size := binary.BigEndian.Uint32(head[1:])
		if size < 4 || size > 1<<20 {
			return "", fmt.Errorf("a message of %d bytes", size)
		}
		body := make([]byte, size-4)
		if _, err := io.ReadFull(c.r, body); err != nil {
			return "", err
		}
		switch head[0] {
		case 'Z': // ready
			return value, err
		case 'E':
			err = fmt.Errorf("postgresql: %q", body)
		case 'D':
			if len(body) > 6 {
				value = string(body[6:])
			}
		}
	}
}

func (c postgresClient) query(ctx context.Context, text string) (string, error) {
	defer c.until(ctx)()
	b := binary.BigEndian.AppendUint32([]byte{'Q'}, uint32(len(text)+5))
	if _, err := c.Write(append(append(b, text...), 0)); err != nil {
		return "", err
	}
	return c.answer()
}

func (c postgresClient) One(ctx context.Context) error {
	_, err := c.query(ctx, "SELECT 1")
	return err
}

func (c postgresClient) Sum(ctx context.Context) (string, error) {
	return c.query(ctx, "SELECT md5(string_agg(md5(v), '')) FROM content")
}

// fillPostgres makes a temporary table, which is in the private memory of the session's process.
func fillPostgres(ctx context.Context, c Client, mib int) error {
	p, ok := c.(postgresClient)
	if !ok {
		return errors.New("another client")
	}
	const row = 1950 // four of them in a page of 8 KiB
	for _, q := range []string{
		fmt.Sprintf("SET temp_buffers = '%dMB'", mib+mib/8),
		fmt.Sprintf("CREATE TEMPORARY TABLE content AS SELECT repeat(md5(i::text), %d) AS v FROM generate_series(1, %d) AS i", row/32, mib<<20/2048),
	} {
		if _, err := p.query(ctx, q); err != nil {
			return err
		}
	}
	return nil
}
