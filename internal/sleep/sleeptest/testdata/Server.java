import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;

/** Answers with a digest of objects and buffers. Arguments: address, MiB. */
public class Server {
    public static void main(String[] args) throws Exception {
        String[] at = args[0].split(":");
        int mib = Integer.parseInt(args[1]);
        List<byte[]> buffers = new ArrayList<>();
        List<String> objects = new ArrayList<>();
        Random random = new Random();
        for (int i = 0; i < mib * 8; i++) {
            byte[] b = new byte[1 << 16];
            random.nextBytes(b);
            buffers.add(b);
        }
        for (int i = 0; i < mib * 2000; i++) objects.add("value " + i);
        HttpServer server = HttpServer.create(new InetSocketAddress(at[0], Integer.parseInt(at[1])), 0);
        server.createContext("/", x -> {
            byte[] body = objects.get(12345).getBytes();
            if (x.getRequestURI().getPath().equals("/sum")) {
                try {
                    MessageDigest d = MessageDigest.getInstance("SHA-256");
                    for (byte[] b : buffers) d.update(b);
                    for (int i = 0; i < objects.size(); i += 97) d.update(objects.get(i).getBytes());
                    body = HexFormat.of().formatHex(d.digest()).getBytes();
                } catch (Exception e) {
                    throw new RuntimeException(e);
                }
            }
            x.sendResponseHeaders(200, body.length);
            x.getResponseBody().write(body);
            x.close();
        });
        server.start();
    }
}
