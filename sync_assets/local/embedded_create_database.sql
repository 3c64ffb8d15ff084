-- template0: nobody is ever connected to it, which would make this fail
CREATE DATABASE {database} TEMPLATE template0
