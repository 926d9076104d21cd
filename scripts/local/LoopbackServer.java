import java.util.Arrays;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import software.amazon.dynamodb.services.local.main.ServerRunner;
import software.amazon.dynamodb.services.local.server.DynamoDBProxyServer;

/**
 * Starts DynamoDB Local on loopback only. The first argument is the port; 0 means any free port. DynamoDB Local itself
 * always listens on all network interfaces, and can't choose a free port.
 */
public final class LoopbackServer {
    public static void main(String[] arguments) throws Exception {
        var out = System.out;
        System.setOut(System.err);
        int wanted = Integer.parseInt(arguments[0]);
        String[] options = Arrays.copyOfRange(arguments, 1, arguments.length);
        DynamoDBProxyServer local = ServerRunner.createServerFromCommandLineArgs(options);
        var field = DynamoDBProxyServer.class.getDeclaredField("server");
        field.setAccessible(true);
        Server jetty = (Server) field.get(local);
        for (var connector : jetty.getConnectors()) {
            ((ServerConnector) connector).setHost("127.0.0.1");
            ((ServerConnector) connector).setPort(wanted);
        }
        local.start();
        int port = ((ServerConnector) jetty.getConnectors()[0]).getLocalPort();
        out.println("listening on http://127.0.0.1:" + port);
        local.join();
    }
}
