package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/distribution/reference"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/creds"
)

func newLogin(a *app) *cobra.Command {
	var user, password string
	var fromStdin, show bool
	cmd := &cobra.Command{
		Use:   "login [flags] [REGISTRY]",
		Short: "Store the credentials for a registry",
		Long: "Check a name and a password at a registry, and store them where docker does: with the helper that the credential file names, or in the\n" +
			"file itself, which only its user can read: $LONGSHORE_AUTH_FILE, $REGISTRY_AUTH_FILE, $DOCKER_CONFIG/config.json or\n" +
			"~/.docker/config.json. The default REGISTRY is Docker Hub.",
		Args: base.OneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			host := creds.Host(strings.Join(args, ""))
			file := creds.Open(a.Getenv)
			if show {
				return a.loggedIn(cmd.Context(), file, host)
			}
			c, err := askCredentials(a, user, password, fromStdin)
			if err != nil {
				return err
			}
			return a.Call(func(cl *base.Client) error {
				_, err := cl.Images.Login(cmd.Context(), &longshorev1.LoginRequest{Host: host, Credentials: &longshorev1.Credentials{Username: c.Username, Password: c.Password}})
				if err != nil {
					return err
				}
				if err := file.Put(cmd.Context(), host, c); err != nil {
					return err
				}
				return a.Print("Login Succeeded\n")
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&user, "username", "u", "", "user name (default: prompt)")
	fl.StringVarP(&password, "password", "p", "", "password; others on this machine can read it in the list of processes")
	fl.BoolVar(&fromStdin, "password-stdin", false, "read the password from standard input")
	fl.BoolVar(&show, "get-login", false, "only show the stored name")
	return cmd
}

// loggedIn prints the stored user name for a registry.
func (a *app) loggedIn(ctx context.Context, file creds.File, host string) error {
	c, ok, err := file.Get(ctx, host)
	switch {
	case err != nil:
		return err
	case !ok:
		return fmt.Errorf("not logged in to %s", host)
	}
	return a.Print("%s\n", c.Username)
}

// maxPassword bounds a password from standard input, in bytes.
const maxPassword = 64 << 10

// askCredentials returns the name and the password of flags, standard input or a terminal.
func askCredentials(a *app, user, password string, fromStdin bool) (creds.Credentials, error) {
	c := creds.Credentials{Username: user, Password: password}
	tty, onTerminal := base.Terminal(a.Stdin)
	switch {
	case fromStdin && (user == "" || password != ""):
		return c, &base.UsageError{Err: errors.New("--password-stdin needs --username, and cannot be combined with --password")}
	case fromStdin:
		raw, err := io.ReadAll(io.LimitReader(a.Stdin, maxPassword+1))
		if err != nil || len(raw) > maxPassword {
			return c, fmt.Errorf("read the password: it is longer than %d bytes or unreadable: %w", maxPassword, errors.Join(err))
		}
		c.Password = strings.TrimRight(string(raw), "\r\n")
	case (user == "" || password == "") && !onTerminal:
		return c, &base.UsageError{Err: errors.New("a name and a password are needed: use --username and --password-stdin where there is no terminal")}
	}
	if c.Username == "" {
		_, _ = fmt.Fprint(a.Stderr, "Username: ")
		line, err := bufio.NewReader(io.LimitReader(a.Stdin, maxPassword)).ReadString('\n')
		if err != nil {
			return c, fmt.Errorf("read the name: %w", err)
		}
		c.Username = strings.TrimSpace(line)
	}
	if c.Password == "" && !fromStdin {
		var err error
		if c.Password, err = hiddenLine(a, tty); err != nil {
			return c, err
		}
	}
	if c.Username == "" || c.Password == "" {
		return c, &base.UsageError{Err: errors.New("neither the name nor the password may be empty")}
	}
	return c, nil
}

// hiddenLine reads a line from a terminal without showing it.
func hiddenLine(a *app, tty *os.File) (string, error) {
	_, _ = fmt.Fprint(a.Stderr, "Password: ")
	raw, err := term.ReadPassword(int(tty.Fd()))
	_, _ = fmt.Fprintln(a.Stderr)
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	return string(raw), nil
}

func newLogout(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "logout [flags] [REGISTRY]",
		Short: "Remove the credentials for a registry",
		Long:  "Remove the credentials that login has stored for a registry. The default REGISTRY is Docker Hub.",
		Args:  base.OneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			file := creds.Open(a.Getenv)
			hosts := []string{creds.Host(strings.Join(args, ""))}
			if all {
				var err error
				if hosts, err = file.Hosts(); err != nil {
					return err
				}
			}
			for _, host := range hosts {
				had, err := file.Delete(cmd.Context(), host)
				if err != nil {
					return err
				}
				text := "Removed the credentials for %s\n"
				if !had {
					text = "Not logged in to %s\n"
				}
				if err := a.Print(text, host); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all credentials in the credential file itself")
	return cmd
}

// credentialsFor returns the credentials for an image's registry: those of the flag, or the stored ones, which are only
// for this registry's host. nil is none.
func credentialsFor(ctx context.Context, a *app, image, flag string) (*longshorev1.Credentials, error) {
	if flag != "" {
		user, password, ok := strings.Cut(flag, ":")
		if !ok {
			password = a.Getenv("LONGSHORE_REGISTRY_PASSWORD")
		}
		return &longshorev1.Credentials{Username: user, Password: password}, nil
	}
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // an ID, or a name that the agent refuses
	}
	host := reference.Domain(named)
	c, ok, err := creds.Open(a.Getenv).Get(ctx, host)
	if err != nil || !ok {
		return nil, err
	}
	return &longshorev1.Credentials{Host: host, Username: c.Username, Password: c.Password, Token: c.Token}, nil
}
